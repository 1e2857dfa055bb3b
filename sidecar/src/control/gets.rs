//! Brings the records that gets and copies of a table need and that the append path does not have in its memory.
//!
//! Called by [`control`](super) for each request of the path; finds the segment in the [log](super::log), and fetches no more of
//! it than the record, from its [`Sources`](super::sources::Sources). Every byte is checked here.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tailwind_primary::PATIENCE;
use tailwind_protocol::table::get::Wanted;
use tokio::time::timeout;

use super::Context;
use super::log::Location;

/// Records of one request that are fetched at the same time.
const AT_ONCE: usize = 8;
/// So long its get waits at most.
const TIME_MAX: Duration = Duration::from_millis(PATIENCE);

/// The values in several records, in their order.
pub(super) async fn fetch_all(context: &Context, wanted: Vec<Wanted>) -> Result<Vec<Vec<u8>>, String> {
    let values = stream::iter(wanted).map(|wanted| async move { fetch(context, &wanted).await });
    values.buffered(AT_ONCE).try_collect().await
}

/// The value in a record. The error says why there is none, for people.
pub(super) async fn fetch(context: &Context, wanted: &Wanted) -> Result<Vec<u8>, String> {
    let segment = wanted.at.segment;
    match context.log.segment(segment) {
        Some(Location::Closed(identity, closure)) => {
            let sources = context.log.sources().ok_or("the term is over")?;
            let value = sources.fetch_value(context, identity, closure, wanted);
            timeout(TIME_MAX, value)
                .await
                .unwrap_or_else(|_| Err(format!("segment {segment}: no backup answers in time")))
        }
        // The path has let go of it, and this has not heard of that.
        Some(Location::Open(_, memory)) => {
            let bytes = wanted.bytes();
            let record = memory.published().get(bytes.start as usize..bytes.end as usize);
            let value = record.and_then(|record| wanted.value(record)).map(|value| value.as_bytes().to_vec());
            value.ok_or_else(|| format!("segment {segment}: the record is not there"))
        }
        None => Err(format!("segment {segment} is not part of the log any more")),
    }
}
