"""What the tests need of Helm: lint, template, notes, install, upgrade, uninstall. Started by e2e/cluster/helm.

The cluster is that of KUBECONFIG. Findings go to standard error, manifests to standard output."""

import argparse
import os
import sys

import helm_python as helm


def main():
    arguments = parse()
    values = {}
    for path in arguments.values:
        with open(path, encoding="utf-8") as file:
            merge(values, helm.values_from_yaml(file.read()))
    for setting in arguments.set:
        merge(values, helm.parse_set_string(setting))
    try:
        sys.exit(arguments.act(arguments, values))
    except helm.HelmError as error:
        sys.exit(f"helm {arguments.command}: {error}")


def parse():
    parser = argparse.ArgumentParser(prog="e2e/cluster/helm", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, act, *positional):
        added = commands.add_parser(name)
        for argument in positional:
            added.add_argument(argument)
        added.add_argument("--namespace", default="default")
        added.add_argument("--values", action="append", default=[], metavar="FILE", help="YAML or JSON")
        added.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
        added.add_argument("--kube-version", help="the version to lint for, such as v1.30.0")
        added.add_argument("--timeout", type=int, default=120, metavar="SECONDS")
        added.add_argument("--reuse-values", action="store_true")
        added.set_defaults(act=act)

    command("lint", lint, "chart")
    command("template", template, "name", "chart")
    command("notes", notes, "name", "chart")
    command("install", install, "name", "chart")
    command("upgrade", upgrade, "name", "chart")
    command("uninstall", uninstall, "name")
    command("status", status, "name")
    return parser.parse_args()


def merge(into, values):
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def lint(arguments, values):
    options = {"kube_version": arguments.kube_version} if arguments.kube_version else {}
    report = helm.lint(arguments.chart, values, strict=True, namespace=arguments.namespace, **options)
    # A missing icon is worth an information, which is severity 1.
    found = [message for message in report["messages"] if message["severity"] >= 2]
    for message in found:
        print(f"{message['path']}: {message['error']}", file=sys.stderr)
    for error in report["errors"]:
        print(error, file=sys.stderr)
    return 1 if found or report["errors"] else 0


def render(arguments, values):
    with helm.Chart.load(arguments.chart) as chart:
        chart.validate_schema(values)
        return chart.render(values, name=arguments.name, namespace=arguments.namespace)


def template(arguments, values):
    for path, manifest in sorted(render(arguments, values).items()):
        if path.endswith(".yaml") and manifest.strip():
            print(f"---\n# {path}\n{manifest.strip()}")


def notes(arguments, values):
    for path, text in render(arguments, values).items():
        if path.endswith("/NOTES.txt"):
            print(text)


def connect(arguments):
    return helm.Config(kubeconfig_path=os.environ.get("KUBECONFIG"), namespace=arguments.namespace)


def install(arguments, values):
    with connect(arguments) as config:
        done = config.install(arguments.chart, arguments.name, values, namespace=arguments.namespace,
                              create_namespace=True, wait="watcher", timeout=arguments.timeout)
    tell(done)


def upgrade(arguments, values):
    with connect(arguments) as config:
        done = config.upgrade(arguments.chart, arguments.name, values, namespace=arguments.namespace,
                              wait="watcher", timeout=arguments.timeout, reuse_values=arguments.reuse_values)
    tell(done)


def uninstall(arguments, _values):
    with connect(arguments) as config:
        config.uninstall(arguments.name, wait="watcher", timeout=arguments.timeout)


def status(arguments, _values):
    with connect(arguments) as config:
        tell(config.status(arguments.name))


def tell(release):
    print(f"{release['name']} {release['revision']} {release['status']}")


if __name__ == "__main__":
    main()
