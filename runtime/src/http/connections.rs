//! The open connections of an endpoint, and which one is closed when it is full: one only displaces others of its own
//! [`Standing`], and of these the one that has been idle for longest goes first.
//!
//! Kept by [`Server::serve`](super::Server::serve): every connection that is accepted is added at once, so that no caller waits
//! to be accepted. One lock around one small table; nothing is awaited under it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{RecvFlags, recv};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::Limits;

/// The open connections.
#[derive(Debug)]
pub(super) struct Connections {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they were accepted.
    entries: BTreeMap<u64, Entry>,
    /// Counts every change: the smaller its number, the longer an entry has been unchanged.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    source: IpAddr,
    standing: Standing,
    activity: Activity,
    changed: u64,
    /// Present while it is silent.
    stream: Option<Arc<TcpStream>>,
    /// Dropped to close it.
    _keep: oneshot::Sender<()>,
}

/// What is known of a connection's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    Unauthenticated,
    /// It has shown who it is, and is one of many that may come.
    Guest,
    /// It has shown who it is.
    Authenticated,
}

/// What a connection does. The least active one of a source is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Activity {
    /// It has not sent a byte.
    Silent,
    /// It has been answered, and may send more: a caller without TLS does so once it has the server's proof.
    Idle,
    /// It sends, or waits for a response.
    Busy,
}

/// One connection of an endpoint. Each request carries it as an extension.
#[derive(Debug)]
pub struct Connection {
    connections: Arc<Connections>,
    id: u64,
    local: SocketAddr,
}

impl Connections {
    pub(super) fn new(limits: Limits) -> Arc<Connections> {
        Arc::new(Connections { limits, state: Mutex::default() })
    }

    /// Adds an unauthenticated connection. The receiver ends when it must be closed.
    pub(super) fn add(
        self: &Arc<Connections>,
        stream: &Arc<TcpStream>,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> (Connection, oneshot::Receiver<()>) {
        let (keep, evicted) = oneshot::channel();
        let source = source(peer.ip());
        let mut state = self.lock();
        state.make_room(Standing::Unauthenticated, &self.limits, source);
        let id = state.tick();
        let stream = Some(Arc::clone(stream));
        let activity = Activity::Silent;
        let standing = Standing::Unauthenticated;
        let entry = Entry { source, standing, activity, changed: id, stream, _keep: keep };
        state.entries.insert(id, entry);
        (Connection { connections: Arc::clone(self), id, local }, evicted)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Closes one connection if there is no room for one more from `source`.
    fn make_room(&mut self, standing: Standing, limits: &Limits, source: IpAddr) {
        let (max, max_per_source) = match standing {
            Standing::Unauthenticated => (limits.unauthenticated, limits.unauthenticated_per_source),
            Standing::Guest => (limits.guests, limits.guests),
            Standing::Authenticated => (limits.authenticated, limits.authenticated),
        };
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for entry in self.entries.values().filter(|entry| entry.standing == standing) {
            *counts.entry(entry.source).or_default() += 1;
        }
        let crowded = if counts.get(&source).is_some_and(|count| *count >= max_per_source) {
            source
        } else if counts.values().sum::<usize>() >= max {
            // The source with most connections gives one up.
            let most = counts.iter().max_by_key(|(_, count)| **count);
            most.map_or(source, |(source, _)| *source)
        } else {
            return;
        };
        let candidates =
            self.entries.iter_mut().filter(|(_, entry)| entry.standing == standing && entry.source == crowded);
        let first = candidates.min_by_key(|(_, entry)| (entry.current_activity(), entry.changed)).map(|(id, _)| *id);
        if let Some(entry) = first.and_then(|id| self.entries.remove(&id)) {
            tracing::debug!(source = %crowded, ?standing, activity = ?entry.activity, "endpoint is full: closed a connection");
        }
    }
}

impl Entry {
    /// A connection whose first bytes have arrived, but whose task has not run yet, is not silent: in a flood of silent
    /// connections this is what tells a caller from them.
    fn current_activity(&self) -> Activity {
        let has_bytes = |stream: &Arc<TcpStream>| {
            let mut byte = [0_u8; 1];
            matches!(recv(&**stream, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((1.., _)))
        };
        if self.stream.as_ref().is_some_and(has_bytes) { Activity::Busy } else { self.activity }
    }
}

impl Connection {
    /// The address that the peer has reached.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The peer has authenticated: connections of another standing no longer displace it.
    pub fn authenticate(&self, standing: Standing) {
        let mut state = self.connections.lock();
        let entry = state.entries.get(&self.id).filter(|entry| entry.standing != standing);
        let Some(source) = entry.map(|entry| entry.source) else { return };
        state.make_room(standing, &self.connections.limits, source);
        if let Some(entry) = state.entries.get_mut(&self.id) {
            entry.standing = standing;
        }
    }

    /// It sends, or waits for a response. From the first time on the stream is the caller's alone.
    pub(super) fn set_busy(&self) {
        self.set(Activity::Busy);
    }

    /// It has been answered.
    pub(super) fn set_idle(&self) {
        self.set(Activity::Idle);
    }

    fn set(&self, activity: Activity) {
        let mut state = self.connections.lock();
        let changed = state.tick();
        if let Some(entry) = state.entries.get_mut(&self.id) {
            (entry.activity, entry.changed, entry.stream) = (activity, changed, None);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.lock().entries.remove(&self.id);
    }
}

/// What counts as one source: an IPv4 address, or a 64-bit IPv6 network, in which a host has as many addresses as it likes.
fn source(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const LIMITS: Limits = Limits {
        unauthenticated: 6,
        unauthenticated_per_source: 3,
        guests: 2,
        authenticated: 4,
        body_bytes: 0,
        guest_body_bytes: 0,
        idle_timeout: super::super::IDLE_TIMEOUT,
    };

    /// A table, and streams to add to it.
    struct Test {
        connections: Arc<Connections>,
        listener: TcpListener,
        peers: Vec<TcpStream>,
    }

    type Added = (Connection, oneshot::Receiver<()>, Arc<TcpStream>);

    impl Test {
        async fn new() -> Test {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            Test { connections: Connections::new(LIMITS), listener, peers: Vec::new() }
        }

        async fn add(&mut self, host: u8) -> Added {
            let (peer, accepted) =
                tokio::join!(TcpStream::connect(self.listener.local_addr().unwrap()), self.listener.accept());
            self.peers.push(peer.unwrap());
            let (stream, local) = (Arc::new(accepted.unwrap().0), "127.0.0.1:7420".parse().unwrap());
            let (connection, evicted) = self.connections.add(&stream, SocketAddr::from(([10, 0, 0, host], 1)), local);
            (connection, evicted, stream)
        }

        async fn add_authenticated(&mut self, host: u8) -> Added {
            self.add_as(Standing::Authenticated, host).await
        }

        async fn add_as(&mut self, standing: Standing, host: u8) -> Added {
            let added = self.add(host).await;
            added.0.set_busy();
            added.0.authenticate(standing);
            added.0.set_idle();
            added
        }
    }

    fn is_open((_, evicted, _): &mut Added) -> bool {
        evicted.try_recv() == Err(oneshot::error::TryRecvError::Empty)
    }

    fn open(all: &mut [Added]) -> Vec<bool> {
        all.iter_mut().map(is_open).collect()
    }

    fn count_open(all: &mut [Added]) -> usize {
        open(all).into_iter().filter(|open| *open).count()
    }

    #[tokio::test]
    async fn a_crowded_source_loses_its_own_connections() {
        let mut test = Test::new().await;
        let mut all = vec![test.add(9).await];
        for _ in 0..5 {
            all.push(test.add(1).await);
        }
        assert_eq!(open(&mut all), [true, false, false, true, true, true]);
    }

    #[tokio::test]
    async fn the_most_crowded_source_makes_room() {
        let mut test = Test::new().await;
        let mut all = Vec::new();
        for host in [1, 2, 2, 3, 3, 3, 4] {
            all.push(test.add(host).await);
        }
        assert_eq!(open(&mut all), [true, true, true, false, true, true, true]);
    }

    #[tokio::test]
    async fn silent_connections_are_closed_first() {
        use tokio::io::AsyncWriteExt;
        let mut test = Test::new().await;
        let mut all = vec![test.add(1).await, test.add(1).await];
        all[0].0.set_busy();
        // It has the server's proof and is about to show the token.
        all[0].0.set_idle();
        // This one's task has not run yet; its bytes have arrived.
        test.peers[1].write_all(b"x").await.unwrap();
        all[1].2.readable().await.unwrap();
        for _ in 0..5 {
            all.push(test.add(1).await);
        }
        assert_eq!(open(&mut all), [true, true, false, false, false, false, true]);
    }

    #[tokio::test]
    async fn unauthenticated_never_displace_authenticated() {
        let mut test = Test::new().await;
        let mut authenticated = test.add_authenticated(1).await;
        let mut others = Vec::new();
        for host in [1].repeat(20).into_iter().chain(2..20) {
            others.push(test.add(host).await);
        }
        assert!(is_open(&mut authenticated));
        assert_eq!(count_open(&mut others), LIMITS.unauthenticated);
    }

    #[tokio::test]
    async fn guests_displace_guests_alone() {
        let mut test = Test::new().await;
        let mut others = vec![test.add(1).await];
        for host in [1, 1, 1, 2] {
            others.push(test.add_authenticated(host).await);
        }
        let mut guests = Vec::new();
        for host in 1..20 {
            guests.push(test.add_as(Standing::Guest, host).await);
        }
        assert_eq!(open(&mut others), [true; 5]);
        assert_eq!(count_open(&mut guests), LIMITS.guests);
        let mut others = vec![test.add_authenticated(3).await, test.add(3).await];
        assert_eq!(open(&mut others), [true; 2]);
        assert_eq!(count_open(&mut guests), LIMITS.guests);
    }

    #[tokio::test]
    async fn the_longest_idle_authenticated_is_closed_first() {
        let mut test = Test::new().await;
        let mut all = Vec::new();
        for host in [1, 1, 1, 2] {
            all.push(test.add_authenticated(host).await);
        }
        all[0].0.set_busy();
        all[1].0.set_busy();
        all[1].0.set_idle();
        all.push(test.add_authenticated(2).await);
        assert_eq!(open(&mut all), [true, true, false, true, true]);
        // Only busy ones are left of the crowded source: the one that has been busy for longest is closed.
        all[1].0.set_busy();
        all.push(test.add_authenticated(1).await);
        all.push(test.add_authenticated(3).await);
        assert_eq!(count_open(&mut all), LIMITS.authenticated);
    }

    #[tokio::test]
    async fn a_closed_connection_leaves_the_table() {
        let mut test = Test::new().await;
        for _ in 0..10 {
            drop(test.add(1).await);
        }
        assert!(test.connections.lock().entries.is_empty());
        let mut first = test.add(1).await;
        drop((test.add(1).await, test.add(1).await));
        drop(test.add(1).await);
        assert!(is_open(&mut first));
    }

    #[test]
    fn addresses_of_one_host_are_one_source() {
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
