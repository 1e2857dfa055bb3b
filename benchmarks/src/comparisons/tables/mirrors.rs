//! Mirrors of the index, from which gets at a standby are answered.

use std::time::Duration;

use anyhow::{Context, Result};
use tailwind_client::blocking::Table;

use super::clients::AtStandby;
use crate::keys::key;
use crate::mix::KeyClient;
use crate::ours::Ours;

/// Waits until every member of the set has a live one, as this primary tells.
pub(super) fn wait_for(ours: &Ours, primary: usize) -> Result<()> {
    let copies = ours.group.setup().copies;
    let waited = ours.group.wait("all mirrors to be live", |group| {
        let status = group.status(primary);
        let live = |mirror: &&serde_json::Value| mirror["state"] == "live";
        status["table"]["mirrors"].as_array().is_some_and(|all| all.iter().filter(live).count() == copies)
    });
    waited.map(drop).with_context(|| format!("the mirrors of {}", ours.name))
}

/// Has the standby answer a get, and says why it does not.
pub(super) fn answer(ours: &Ours) -> Result<()> {
    Table::over(ours.client(Duration::ZERO)?)?.put(key(0).as_bytes(), b"value")?;
    wait_for(ours, 0)?;
    AtStandby::connect(ours)?.read(key(0).as_bytes()).map(drop).context("get a key at the standby")
}
