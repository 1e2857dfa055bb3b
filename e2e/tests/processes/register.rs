//! The register that tests in a cluster run over a plain log: it answers at each sidecar, and takes writes at its turn.

use std::time::Duration;

use tailwind_e2e::context::TestContext;
use tailwind_e2e::processes::group::{Group, Setup};
use tailwind_e2e::processes::process::free_port;
use tailwind_e2e::processes::register;
use tailwind_e2e::processes::resp::{RespClient, RespValue};
use tailwind_e2e::processes::steps::OUTAGE;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

fn ask(port: u16, command: &str) -> Option<RespValue> {
    let mut client = RespClient::connect(port, PATIENCE).ok()?;
    client.send_bytes(format!("{command}\r\n").as_bytes()).ok()?;
    client.reply().ok()
}

fn write(group: &Group, port: u16, value: &str) {
    let command = format!("SET key {value}");
    group.wait("a write", |_| ask(port, &command) == Some(RespValue::Simple("OK".into()))).unwrap();
}

#[test]
fn a_register_shows_its_value_at_every_sidecar() {
    const READER: usize = 2;
    let test = TestContext::start();
    let setup = test.setup_with_default_timeouts("shm").unwrap();
    let mut group = test.start_group(Setup { sidecars: 3, readers: 1, ..setup }).unwrap();
    let ports = [free_port().unwrap(), free_port().unwrap(), free_port().unwrap()];
    for (index, port) in ports.into_iter().enumerate() {
        let socket = group.socket(index);
        std::thread::spawn(move || register::serve(&socket, &format!("127.0.0.1:{port}")));
    }
    let show = |group: &Group, value: &str| {
        let value = RespValue::text(value);
        let all = |_: &Group| ports.iter().all(|port| ask(*port, "GET key").as_ref() == Some(&value));
        group.wait("the value everywhere", all).unwrap();
    };
    let primary = group.wait_for_primary().unwrap();
    write(&group, ports[primary], "before");
    show(&group, "before");
    for other in [1 - primary, READER] {
        assert!(ask(ports[other], "SET key taken").unwrap().is_error("READONLY"));
    }
    group.kill_sidecar(primary).unwrap();
    write(&group, ports[1 - primary], "after");
    group.start_sidecar(primary).unwrap();
    show(&group, "after");
    assert!(ask(ports[primary], "SET key taken").unwrap().is_error("READONLY"));
    group.check_logs(&OUTAGE).unwrap();
}
