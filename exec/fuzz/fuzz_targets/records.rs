#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwind_exec_fuzz::records(data));
