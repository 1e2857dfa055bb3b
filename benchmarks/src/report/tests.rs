use std::fs;
use std::path::{Path, PathBuf};

use super::*;

/// The pages and data of the repository.
pub(crate) fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// A small run that has something of everything.
pub(crate) mod example {
    use crate::gate::{Commit, Gate};
    use crate::machine::Machine;
    use crate::results::{About, Absent, Comparison, Contestant, Figures, Metric, Results, Sample};

    fn about() -> About {
        let machine = Machine {
            processor: "Example | CPU".to_owned(),
            processors: 4,
            memory_gib: 15.6,
            kernel: "6.1.0".to_owned(),
            system: "Debian GNU/Linux 12 (bookworm)".to_owned(),
        };
        About {
            command: "./bench --only floors --only peers".to_owned(),
            date: "2026-01-02 03:04 UTC".to_owned(),
            revision: "0123456".to_owned(),
            rounds: 2,
            effort: 100,
            quick: false,
            machine,
        }
    }

    fn contestant(name: &str, configuration: &str) -> Contestant {
        Contestant {
            name: name.to_owned(),
            version: "1.0".to_owned(),
            claim: "in memory".to_owned(),
            configuration: configuration.to_owned(),
        }
    }

    fn sample(contestant: &str, case: &str, at: Option<f64>, round: u32, figures: Figures) -> Sample {
        Sample { contestant: contestant.to_owned(), case: case.to_owned(), at, round, figures }
    }

    pub(crate) fn results() -> Results {
        let (floor, ours, case) = ("ping-pong, Unix socket, blocking", "Tailwind shm", "one at a time, 128 B");
        let p50 = |contestant, round, value| sample(contestant, case, None, round, [(Metric::P50, value)].into());
        let floors = Comparison {
            name: "floors".to_owned(),
            apart: None,
            busy_before: 0.034,
            load: vec![0.5, 1.25],
            contestants: vec![contestant(floor, ""), contestant(ours, "--fabric shm")],
            absent: vec![Absent { name: "Tailwind tcp".to_owned(), why: "it has no port.".to_owned() }],
            samples: vec![p50(floor, 1, 10.0), p50(ours, 1, 12.0), p50(floor, 2, 8.0), p50(ours, 2, 11.0)],
        };
        let mut samples = Vec::new();
        for (contestant, scale) in [("Tailwind shm, 3 backups", 1.0), ("Tailwind tcp, 3 backups", 4.0), ("Redis", 8.0)]
        {
            for (round, slower) in [(1, 1.0), (2, 1.25)] {
                for (case, clients) in [("1 client", 1.0), ("64 clients", 64.0)] {
                    let p50 = 8.0 * scale * slower * clients;
                    let mut figures: Figures = [(Metric::P50, p50), (Metric::P99, 10.0 * p50)].into();
                    figures.insert(Metric::Rate, 125_000.0 / scale / slower);
                    samples.push(sample(contestant, case, Some(clients), round, figures));
                }
            }
        }
        let contestants = vec![contestant("Redis", "WAIT 2")];
        let peers =
            Comparison { name: "peers".to_owned(), load: vec![1.0, 1.0], contestants, samples, ..floors.clone() };
        let peers = Comparison { absent: Vec::new(), ..peers };
        Results { about: about(), comparisons: vec![floors, peers] }
    }

    /// Two figures that became worse, one that is better, one that is the same, and one that nobody knows.
    pub(crate) fn gate() -> Gate {
        let commit = Commit::parse("abcdef0123456789 A subject of old").unwrap();
        let mut gate = Gate::new(About { command: "./bench --gate".to_owned(), rounds: 13, ..about() }, commit);
        gate.comparison.load = vec![0.1; 13];
        gate.comparison.contestants =
            vec![contestant("before", "its own client"), contestant("after", "its own client")];
        gate.comparison.absent =
            vec![Absent { name: "tcp, failover".to_owned(), why: "the build before cannot do that".to_owned() }];
        for (case, metric, before, after, noise) in [
            ("tcp, one append, client polls", Metric::P50, 60.0, 110.0, 0.05),
            ("tcp, 64 clients", Metric::Rate, 100_000.0, 60_000.0, 0.05),
            ("shm, pipelined", Metric::Rate, 1_000_000.0, 2_000_000.0, 0.05),
            ("shm, one append, client sleeps", Metric::P50, 16.0, 16.1, 0.02),
            ("shm, failover", Metric::FirstAck, 110.0, 120.0, 0.3),
        ] {
            for round in 1..=13 {
                // Evenly spread, and the other way round before. Files keep five digits.
                let wave = noise * (f64::from(round) - 7.0) / 6.0;
                let digits = |value| crate::data::digits(value).parse().unwrap();
                let note = |name, value| sample(name, case, None, round, [(metric, digits(value))].into());
                gate.comparison.samples.push(note("before", before * (1.0 - wave / 2.0)));
                gate.comparison.samples.push(note("after", after * (1.0 + wave / 2.0)));
            }
        }
        gate
    }
}

#[test]
fn what_was_measured_apart_is_said() {
    let mut later = example::results();
    later.about.command = "./bench --only floors --update".to_owned();
    later.about.date = "2026-05-06 07:08 UTC".to_owned();
    later.about.machine.kernel = "6.2.0".to_owned();
    later.comparisons.truncate(1);
    later.comparisons[0].load = vec![7.0];
    let updated = example::results().updated(later);
    let names: Vec<&str> = updated.comparisons.iter().map(|comparison| comparison.name.as_str()).collect();
    assert_eq!((names, &updated.about), (vec!["floors", "peers"], &example::results().about));
    assert_eq!(updated.comparison("floors").map(|floors| floors.load.clone()), Some(vec![7.0]));
    let text = page(&drawn(Some(&updated), None));
    for wanted in ["| `floors`, apart | 2026-05-06 07:08 UTC, `./bench --only floors --update`", "Linux 6.2.0"] {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(!text.contains("`peers`, apart"), "{text}");
}

fn drawn(results: Option<&Results>, gate: Option<&Gate>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("benchmarks");
    results.iter().for_each(|results| results.save(&data).unwrap());
    gate.iter().for_each(|gate| gate.save(&data).unwrap());
    render(folder.path()).unwrap();
    folder
}

fn page(folder: &tempfile::TempDir) -> String {
    fs::read_to_string(folder.path().join("benchmarks.md")).unwrap()
}

#[test]
fn the_pages_are_as_the_golden_files_say() {
    let folder = drawn(Some(&example::results()), Some(&example::gate()));
    for (page, golden) in [
        ("benchmarks.md", "page.txt"),
        ("benchmarks/README.md", "data.txt"),
        ("benchmarks/throughput-by-clients.svg", "plot.svg"),
    ] {
        let written = fs::read_to_string(folder.path().join(page)).unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/golden").join(golden);
        if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
            fs::write(&golden, &written).unwrap();
        }
        assert_eq!(written, fs::read_to_string(golden).unwrap(), "UPDATE_GOLDENFILES=1 rewrites it");
    }
}

#[test]
fn what_became_worse_stands_in_the_first_lines() {
    let gate = example::gate();
    let first =
        |gate: &Gate| page(&drawn(Some(&example::results()), Some(gate))).lines().take(9).collect::<Vec<_>>().join(" ");
    let text = first(&gate);
    for wanted in
        ["2 figures are worse than at commit `abcdef0`", "tcp, one append, client polls: p50, µs: 60.0 before, 110 now"]
    {
        assert!(text.contains(wanted), "{text}");
    }
    let mut fine = gate.clone();
    fine.comparison.samples.retain(|sample| sample.case.starts_with("shm"));
    let text = first(&fine);
    assert!(
        text.contains("No figure is worse than at commit `abcdef0`") && text.contains("3 figures were compared"),
        "{text}"
    );
    let mut impossible = gate;
    impossible.impossible = Some("start before: it refuses\n--ring".to_owned());
    let text = first(&impossible);
    assert!(text.contains("Not compared with commit") && text.contains("it refuses --ring."), "{text}");
}

#[test]
fn each_picture_is_on_the_page_and_those_of_an_earlier_run_go() {
    let folder = drawn(Some(&example::results()), None);
    let data = folder.path().join("benchmarks");
    fs::write(data.join("old.svg"), "").unwrap();
    fs::write(data.join("notes.txt"), "").unwrap();
    render(folder.path()).unwrap();
    assert!(!data.join("old.svg").exists() && data.join("notes.txt").exists());
    let page = page(&folder);
    let pictures: Vec<_> = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let pictures: Vec<_> = pictures.iter().filter_map(|name| name.to_str()).filter(|n| n.ends_with(".svg")).collect();
    assert_eq!(pictures.len(), 2, "{pictures:?}");
    assert!(pictures.iter().all(|name| page.contains(&format!("(benchmarks/{name})"))), "{page}");
}

#[test]
fn a_page_without_data_says_what_is_missing() {
    assert!(page(&drawn(None, None)).contains("Not compared with an earlier commit yet"));
    assert!(page(&drawn(None, Some(&example::gate()))).contains("## Beside the earlier commit"));
}

/// A page that was changed in code only, or by hand.
#[test]
fn the_committed_pages_are_those_of_the_committed_data() {
    let committed = committed();
    let load = |folder: &Path| (Results::load(folder).unwrap(), Gate::load(folder).unwrap());
    let (results, gate) = load(&committed.join("benchmarks"));
    let folder = drawn(results.as_ref(), gate.as_ref());
    let files = |folder: &Path| {
        let data = fs::read_dir(folder.join("benchmarks")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = data.chain([folder.join("benchmarks.md")]).collect();
        files.sort();
        files
            .into_iter()
            .map(|f| (f.strip_prefix(folder).unwrap().to_owned(), fs::read_to_string(f).unwrap()))
            .collect::<Vec<_>>()
    };
    let (drawn, committed) = (files(folder.path()), files(&committed));
    let names = |files: &[(PathBuf, String)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&drawn), names(&committed), "./bench --render redraws them");
    for ((name, drawn), (_, committed)) in drawn.iter().zip(&committed) {
        assert!(drawn == committed, "{} differs: ./bench --render redraws it", name.display());
    }
}

/// A page for people: the tables are beside it.
#[test]
fn the_committed_page_is_short_and_compares_with_no_unnamed_build() {
    let page = fs::read_to_string(committed().join("benchmarks.md")).unwrap();
    assert!(page.lines().count() <= 200, "{} lines", page.lines().count());
    assert!(!page.contains("other build"));
}

#[test]
fn a_run_is_whole_if_nothing_was_left_out() {
    let mut whole = example::results();
    assert!(!whole.are_whole(), "comparisons are missing");
    let named = |name: &str| crate::results::Comparison { name: name.to_owned(), ..Default::default() };
    whole.comparisons = crate::comparisons::ALL.iter().map(|definition| named(definition.name)).collect();
    assert!(whole.are_whole());
    whole.about.effort = 99;
    assert!(!whole.are_whole());
    whole.about.effort = 100;
    whole.about.quick = true;
    assert!(!whole.are_whole());
}
