"""Prints a chart's README with the table of its values, made from the comments `# --` of values.yaml.

Started by scripts/manifests.sh: values_table.py VALUES README"""

import re
import sys

BEGIN, END = "<!-- values -->\n", "<!-- end of values -->\n"


def rows(lines):
    """Key, default and description of each value that has a comment."""
    path, about = [], []
    for number, line in enumerate(lines):
        comment = re.match(r" *# (-- )?(.*)", line)
        if comment and (comment[1] or about):
            about.append(comment[2].strip())
            continue
        entry = re.match(r"( *)([A-Za-z]\w*):\s*(.*?)\s*$", line)
        if entry:
            indent, key, default = len(entry[1]) // 2, entry[2], entry[3]
            path = path[:indent] + [key]
            if about:
                yield ".".join(path), default or below(lines[number + 1 :], len(entry[1])), " ".join(about)
        about = []


def below(lines, indent):
    """A default that is a map or a list, as its lines say it."""
    words = []
    for line in lines:
        if not line.strip() or len(line) - len(line.lstrip()) <= indent:
            break
        words.append(line.strip())
    return "; ".join(words).replace(":; ", ": ")


def main():
    values, readme = sys.argv[1:]
    with open(values, encoding="utf-8") as file:
        lines = file.read().splitlines()
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{readme}: must have one line {BEGIN.strip()} and one {END.strip()}")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    table = ["| value | default | what it is |\n", "|---|---|---|\n"]
    for key, default, about in rows(lines):
        table.append("| `%s` | `%s` | %s |\n" % (key, default.replace("|", "\\|"), about.replace("|", "\\|")))
    sys.stdout.write(before + BEGIN + "".join(table) + END + after)


if __name__ == "__main__":
    main()
