//! Measures appends: one at a time, and pipelined. `speed SOCKET COUNT SPIN_US [socket]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]
use std::time::{Duration, Instant};
use tailwind_client::{Options, blocking::Client};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let count: usize = a[2].parse().unwrap();
    let spin = Duration::from_micros(a[3].parse().unwrap());
    let socket_only = a.get(4).is_some();
    let options = Options { spin, socket_only, ..Options::default() };
    let mut client = Client::connect_with(&a[1], &options).unwrap();
    let mut times = Vec::with_capacity(count);
    for _ in 0..1000 {
        client.append(&[7; 128]).unwrap();
    }
    for _ in 0..count {
        let began = Instant::now();
        client.append(&[7; 128]).unwrap();
        times.push(began.elapsed());
    }
    times.sort();
    println!(
        "ring {} one at a time: p50 {:?} p90 {:?} p99 {:?}",
        client.welcome().ring,
        times[count / 2],
        times[count * 9 / 10],
        times[count * 99 / 100]
    );
    let many = count * 40;
    let began = Instant::now();
    for _ in 0..many {
        client.submit(&[7; 100]).unwrap();
        while let Some(ack) = client.try_next_ack() {
            ack.outcome.unwrap();
        }
        while client.in_flight() > 2000 {
            client.next_ack().unwrap();
        }
    }
    client.flush().unwrap();
    println!("pipelined: {:.2} M/s", many as f64 / began.elapsed().as_secs_f64() / 1e6);
}
