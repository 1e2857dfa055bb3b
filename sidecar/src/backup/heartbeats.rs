//! Heartbeats: that this backup lives, and whether readers look at its board.
//!
//! Sent by [`routes`](super::routes) to all listeners. The primary is one: it writes boards only while a reader looks at one.
//! So a change is sent at once, even where heartbeats are rare.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tailwind_protocol::rpc::{HEARTBEAT, HEARTBEAT_FOLLOWED};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// What heartbeats are made of.
#[derive(Clone, Debug)]
pub(super) struct Heartbeats {
    /// Between two of them.
    pub(super) interval: Duration,
    /// Whether readers look at the board.
    pub(super) followed: watch::Receiver<bool>,
}

impl Heartbeats {
    /// Without end: one now, one every interval, and one when it has another thing to say.
    pub(super) fn stream(&self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + use<> {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        stream::unfold((ticks, self.followed.clone()), |(mut ticks, mut followed)| async move {
            tokio::select! {
                _ = ticks.tick() => {}
                Ok(()) = followed.changed() => {}
            }
            let heartbeat = if *followed.borrow_and_update() { HEARTBEAT_FOLLOWED } else { HEARTBEAT };
            Some((Ok(Bytes::from_static(heartbeat)), (ticks, followed)))
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use tailwind_protocol::rpc::is_followed;

    use super::*;

    /// An hour between two: what is heard before is there because it has changed.
    #[tokio::test]
    async fn a_change_is_heard_at_once() {
        let (tell, followed) = watch::channel(false);
        let mut heard = Box::pin(Heartbeats { interval: Duration::from_secs(3600), followed }.stream());
        let mut next = async || is_followed(&heard.next().await.expect("endless").expect("infallible"));
        assert!(!next().await, "the first comes at once");
        for now in [true, false, true] {
            tell.send(now).expect("it is listened to");
            assert_eq!(next().await, now);
        }
    }

    #[tokio::test]
    async fn heartbeats_come_after_the_actor_has_ended() {
        let (tell, followed) = watch::channel(true);
        drop(tell);
        let heard = Heartbeats { interval: Duration::from_millis(1), followed }.stream();
        assert_eq!(
            heard.take(3).map(|beat| is_followed(&beat.expect("infallible"))).collect::<Vec<_>>().await,
            [true; 3]
        );
    }
}
