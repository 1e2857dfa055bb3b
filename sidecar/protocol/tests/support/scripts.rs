//! Golden scripts as tests. Used by the test targets that have a folder of scripts.

/// One test for each script of a folder, played by a new runner, and a test that none was forgotten.
macro_rules! scripts {
    ($runner:ty, $folder:literal: $($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() -> std::io::Result<()> {
                goldenscript::run(&mut <$runner>::default(), concat!($folder, "/", stringify!($name), ".txt"))
            }
        )*

        #[test]
        fn every_script_is_played() {
            let played = [$(concat!(stringify!($name), ".txt")),*];
            for entry in std::fs::read_dir($folder).expect("the folder is there") {
                let name = entry.expect("a file").file_name();
                assert!(played.contains(&name.to_str().expect("UTF-8")), "{name:?} is not in the list");
            }
        }
    };
}
