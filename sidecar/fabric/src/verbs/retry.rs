//! How long a card repeats a write before it reports the other side gone.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The unit of the local acknowledgement timeout: InfiniBand Architecture volume 1, section 9.7.6.1.3.
const UNIT_NS: u64 = 4096;
/// A card may wait up to four times the timeout that it was given (same section).
const SLACK: u32 = 4;
/// Largest exponent: five bits in `ibv_modify_qp(3)`. 0 would mean "without end".
const EXPONENT_MAX: u8 = 31;
/// Largest count: three bits.
const RETRIES_MAX: u8 = 7;

/// `timeout` and `retry_cnt` of a queue pair: a write is sent 1 + `retries` times, 4.096 µs × 2^`exponent` apart or up to
/// four times that.
///
/// The default, 11 and 6, is 7 × 8.4 ms: a dead host or a cut link shows after 59 to 235 ms. One repetition less would save
/// little time and forgive one lost packet less; an exponent less would take a busy switch for a dead one. And 7 is no
/// number to soft-RoCE (`rxe`), which then never stops retrying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    exponent: u8,
    retries: u8,
}

/// Not a retry policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be EXPONENT/RETRIES, 1 to {EXPONENT_MAX} and 1 to {RETRIES_MAX}, such as 11/6: a write is sent 1 + RETRIES times, \
     4.096 µs × 2^EXPONENT apart"
)]
pub struct InvalidRetryPolicy;

impl RetryPolicy {
    /// Both must be at least 1: exponent 0 waits without limit, and without a repetition one lost packet is a lost member.
    fn new(exponent: u8, retries: u8) -> Result<RetryPolicy, InvalidRetryPolicy> {
        let fits = (1..=EXPONENT_MAX).contains(&exponent) && (1..=RETRIES_MAX).contains(&retries);
        fits.then_some(RetryPolicy { exponent, retries }).ok_or(InvalidRetryPolicy)
    }

    /// For `ibv_qp_attr.timeout`.
    #[cfg(feature = "verbs")]
    pub(super) fn exponent(self) -> u8 {
        self.exponent
    }

    /// For `ibv_qp_attr.retry_cnt`.
    #[cfg(feature = "verbs")]
    pub(super) fn retries(self) -> u8 {
        self.retries
    }

    /// The shortest time from the loss of the other side to the error.
    pub fn shortest(self) -> Duration {
        Duration::from_nanos(UNIT_NS << self.exponent) * u32::from(self.retries + 1)
    }

    /// At the latest, on a card that keeps to the specification. Some have a floor of their own: `tailwind-sidecar doctor`
    /// measures.
    pub fn longest(self) -> Duration {
        self.shortest() * SLACK
    }
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy { exponent: 11, retries: 6 }
    }
}

impl FromStr for RetryPolicy {
    type Err = InvalidRetryPolicy;

    fn from_str(text: &str) -> Result<RetryPolicy, InvalidRetryPolicy> {
        let (exponent, retries) = text.split_once('/').ok_or(InvalidRetryPolicy)?;
        RetryPolicy::new(
            exponent.parse().map_err(|_| InvalidRetryPolicy)?,
            retries.parse().map_err(|_| InvalidRetryPolicy)?,
        )
    }
}

impl fmt::Display for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.exponent, self.retries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_finds_a_dead_host_within_235_ms() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.shortest().as_millis(), 58);
        assert_eq!(policy.longest().as_millis(), 234);
    }

    #[test]
    fn text_form_is_exponent_and_retries() {
        assert_eq!("14/7".parse(), RetryPolicy::new(14, 7));
        assert_eq!(RetryPolicy::default().to_string(), "11/6");
        for bad in ["", "11", "11/", "0/7", "11/0", "32/7", "11/8", "a/7", "-1/7"] {
            assert_eq!(bad.parse::<RetryPolicy>(), Err(InvalidRetryPolicy), "{bad}");
        }
    }
}
