use super::*;
use crate::results::{About, Absent, Contestant, FORMAT, Ratio, Sample};

/// Two rounds of two comparisons, with all that a report can have.
fn results() -> Results {
    let machine = crate::machine::Machine {
        processor: "Example | CPU".to_owned(),
        processors: 4,
        memory_gib: 15.6,
        kernel: "6.1.0".to_owned(),
        system: "Debian GNU/Linux 12 (bookworm)".to_owned(),
    };
    let about = About {
        command: "./bench --only floors".to_owned(),
        date: "2026-01-02 03:04 UTC".to_owned(),
        rounds: 2,
        effort: 100,
        quick: false,
        machine,
    };
    let sample = |contestant: &str, case: &str, round, p50: f64, at| Sample {
        contestant: contestant.to_owned(),
        case: case.to_owned(),
        at,
        round,
        figures: [(Metric::P50, p50), (Metric::Rate, 1e6 / p50)].into(),
        distribution: if at.is_none() { vec![(p50 / 2.0, 0.1), (p50, 0.5), (p50 * 3.0, 0.99)] } else { Vec::new() },
    };
    let contestant = |name: &str, configuration: &str| Contestant {
        name: name.to_owned(),
        version: "1.0".to_owned(),
        claim: "in memory".to_owned(),
        configuration: configuration.to_owned(),
    };
    let (floor, ours, case) = ("ping-pong, Unix socket, blocking", "Tailwind shm", "one at a time, 128 B");
    let floors = Comparison {
        name: "floors".to_owned(),
        busy_before: 0.034,
        load: vec![0.5, 1.25],
        contestants: vec![contestant(floor, ""), contestant(ours, "--fabric shm")],
        absent: vec![Absent { name: "Tailwind tcp".to_owned(), why: "it has no port.".to_owned() }],
        samples: vec![
            sample(floor, case, 1, 10.0, None),
            sample(ours, case, 1, 12.0, None),
            sample(floor, case, 2, 8.0, None),
            sample(ours, case, 2, 10.0, None),
        ],
        ratios: vec![Ratio {
            name: format!("{ours} / {floor}"),
            of: cell(ours, case, Metric::P50),
            to: cell(floor, case, Metric::P50),
        }],
    };
    let scale = Comparison {
        name: "scale".to_owned(),
        load: vec![1.0, 1.0],
        contestants: vec![contestant(ours, "--fabric shm")],
        samples: vec![
            sample(ours, "clients: 1", 1, 10.0, Some(1.0)),
            sample(ours, "clients: 64", 1, 640.0, Some(64.0)),
            sample(ours, "clients: 1", 2, 11.0, Some(1.0)),
            sample(ours, "clients: 64", 2, 660.0, Some(64.0)),
        ],
        ..Comparison::default()
    };
    Results { format: FORMAT, about, comparisons: vec![floors, scale] }
}

#[test]
fn the_report_is_as_the_golden_file_says() {
    let folder = tempfile::tempdir().unwrap();
    write(&results(), folder.path()).unwrap();
    let written = fs::read_to_string(folder.path().join("benchmarks.md")).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/golden.txt");
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        fs::write(&golden, &written).unwrap();
    }
    assert_eq!(written, fs::read_to_string(golden).unwrap(), "UPDATE_GOLDENFILES=1 writes it anew");
    let mut plots: Vec<_> =
        fs::read_dir(folder.path().join("benchmarks")).unwrap().map(|e| e.unwrap().path()).collect();
    plots.sort();
    for plot in &plots {
        let name = plot.file_name().unwrap().to_str().unwrap();
        assert!(written.contains(&format!("(benchmarks/{name})")), "{name} is not in the report");
        assert!(fs::read_to_string(plot).unwrap().starts_with("<svg "), "{name}");
    }
    assert_eq!(plots.len(), 2, "{plots:?}");
}

#[test]
fn plots_of_an_earlier_run_go_and_other_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("benchmarks");
    fs::create_dir(&images).unwrap();
    fs::write(images.join("old.svg"), "").unwrap();
    fs::write(images.join("notes.md"), "").unwrap();
    write(&results(), folder.path()).unwrap();
    assert!(!images.join("old.svg").exists() && images.join("notes.md").exists());
}

#[test]
fn a_run_is_whole_if_nothing_was_left_out() {
    let mut whole = results();
    assert!(!whole.are_whole(), "comparisons are missing");
    let named = |name: &str| Comparison { name: name.to_owned(), ..Comparison::default() };
    whole.comparisons = comparisons::ALL.iter().map(|definition| named(definition.name)).collect();
    assert!(whole.are_whole());
    whole.about.effort = 99;
    assert!(!whole.are_whole());
    whole.about.effort = 100;
    whole.about.quick = true;
    assert!(!whole.are_whole());
}

#[test]
fn results_survive_being_saved() {
    let file = tempfile::NamedTempFile::new().unwrap();
    results().save(file.path()).unwrap();
    let loaded = Results::load(file.path()).unwrap();
    assert_eq!(text(&loaded, &[vec![], vec![]]), text(&results(), &[vec![], vec![]]));

    let newer = Results { format: FORMAT + 1, ..results() };
    newer.save(file.path()).unwrap();
    let error = Results::load(file.path()).unwrap_err().to_string();
    assert!(error.contains("run ./bench again"), "{error}");
    fs::write(file.path(), "{}").unwrap();
    let error = Results::load(file.path()).unwrap_err().to_string();
    assert!(error.contains("does not hold the results of a bench"), "{error}");
}

#[test]
fn numbers_have_three_digits_that_matter() {
    for (value, text) in [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (0.5, "0.500"),
        (1.2345, "1.23"),
        (12.345, "12.3"),
        (123.4, "123"),
        (1234.5, "1,234"),
        (1_234_567.0, "1,234,567"),
        (-1234.0, "-1,234"),
    ] {
        assert_eq!(number(value), text);
    }
}
