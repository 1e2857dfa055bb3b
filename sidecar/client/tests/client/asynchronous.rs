//! The asynchronous client: what differs from the blocking one is the waiting, so that is what is tested here.

use std::time::Duration;

use crate::fake::{Server, sidecar, sidecar_with_ring, with_backpressure};
use tailwind_client::asynchronous::Client;
use tailwind_client::{Epoch, Error, Event, FollowEvent, Lsn, Options, Position};
use tailwind_protocol::socket::{Request, Response};

#[tokio::test]
async fn all_functions_work() {
    all_functions(Server::new(sidecar), false).await;
}

#[tokio::test]
async fn all_functions_work_with_a_ring() {
    all_functions(Server::new(sidecar_with_ring), true).await;
}

async fn all_functions(server: Server, ring: bool) {
    let mut client = Client::connect(server.path()).await.unwrap();
    assert_eq!(client.welcome().ring, ring);
    assert_eq!(client.welcome().limits.inflight_max, 1000);
    assert_eq!(client.append(b"one").await.unwrap(), Lsn(1));
    assert_eq!(client.append_batch(&["two", "three"]).await.unwrap(), Lsn(3));
    assert_eq!(client.append(&vec![7; 1 << 20]).await.unwrap(), Lsn(4));

    let mut records = client.read(Lsn(2), 2).await.unwrap();
    assert_eq!(records.next_record().await.unwrap(), Some((Lsn(2), &b"two"[..])));
    assert_eq!(records.next_record().await.unwrap(), Some((Lsn(3), &b"three"[..])));
    assert_eq!(records.next_record().await.unwrap(), None);
    drop(records);

    assert_eq!(client.barrier().await.unwrap().last, Lsn(4));
    assert_eq!(client.trim(Lsn(2)).await.unwrap(), Lsn(2));
    assert_eq!(client.status().await.unwrap(), r#"{"role":"primary"}"#);

    let mut tail = client.tail(Lsn(5)).await.unwrap();
    assert_eq!(tail.next_event().await.unwrap(), Some(Event::CaughtUp { next: Lsn(5) }));
    assert_eq!(tail.stop().await.unwrap(), Lsn(5));
    drop(client.tail(Lsn(1)).await.unwrap());
    assert_eq!(client.append(b"five").await.unwrap(), Lsn(5));
    let mut reserved = client.reserve(3).await.unwrap();
    reserved.bytes_mut().copy_from_slice(b"six");
    let ticket = reserved.submit();
    assert_eq!(client.wait_for(ticket).await.unwrap(), Lsn(6));

    let mut follow = client.follow(Lsn(6)).await.unwrap();
    assert_eq!(follow.next_event().await.unwrap(), Some(FollowEvent::Record(Lsn(6), b"six")));
    assert_eq!(follow.next_lsn(), Lsn(7));
    assert!(matches!(follow.next_event().await.unwrap(), Some(FollowEvent::Lag { acked: Lsn(6), stale: false, .. })));
    assert_eq!(follow.next_event().await.unwrap(), Some(FollowEvent::Turn { epoch: Epoch(3), next: Lsn(7) }));
    assert_eq!(follow.next_event().await.unwrap(), None);
    drop(follow);
    assert_eq!(client.append(b"seven").await.unwrap(), Lsn(7));
    let mut records = client.read_anywhere(Lsn(7), 0).await.unwrap();
    assert_eq!(records.next_record().await.unwrap(), Some((Lsn(7), &b"seven"[..])));
    assert_eq!(records.next_record().await.unwrap(), None);
    drop(records);
    assert_eq!(client.position().await.unwrap(), Position { epoch: Epoch(3), last: Lsn(7) });
    drop(client);
    server.join();
}

/// Submits records of this size to a sidecar that reads nothing while acks of `group` appends are not taken.
async fn pipeline(group: usize, count: u64, size: usize, ring: bool) {
    let server = Server::new(move |peer| with_backpressure(peer, group, ring));
    let mut client = Client::connect(server.path()).await.unwrap();
    for _ in 0..count {
        client.submit(&vec![1; size]).await.unwrap();
    }
    assert_eq!(client.flush().await.unwrap(), Some(Lsn(count)));
    drop(client);
    server.join();
}

#[tokio::test]
async fn pipelining_does_not_deadlock() {
    pipeline(1000, 100_000, 100, false).await;
    pipeline(1000, 100_000, 100, true).await;
}

#[tokio::test]
async fn large_records_do_not_deadlock() {
    pipeline(4, 40, 1 << 20, false).await;
    pipeline(4, 40, 1 << 20, true).await;
}

#[tokio::test]
async fn dropped_future_loses_nothing() {
    let (sender, late) = std::sync::mpsc::channel();
    let server = Server::new(move |mut peer| {
        peer.welcome();
        let append = peer.expect(Request::Append { payload: b"x" });
        late.recv().unwrap();
        peer.send(append, Response::Ack { lsn: 10 });
    });
    let mut client = Client::connect(server.path()).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(20), client.append(b"x")).await.is_err());
    sender.send(()).unwrap();
    assert_eq!(client.next_ack().await.unwrap().unwrap().outcome.unwrap(), Lsn(10));
    assert!(matches!(client.append(b"y").await, Err(Error::Disconnected { .. })));
    server.join();
}

#[tokio::test]
async fn client_is_usable_after_a_timeout() {
    let server = Server::new(|mut peer| {
        peer.welcome();
        assert!(peer.next(|_, _| ()).is_none());
    });
    let options = Options { timeout: Some(Duration::from_millis(20)), ..Options::default() };
    let mut client = Client::connect_with(server.path(), &options).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(client.next_role().await, Err(Error::TimedOut { .. })));
    }
    drop(client);
    server.join();
}
