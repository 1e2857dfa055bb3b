#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwind_protocol_fuzz::line_2(data));
