//! How this server does, in numbers: for `INFO` and `/metrics`.
//!
//! Counted where things happen, shared by all tasks.

use std::sync::atomic::{AtomicU64, Ordering};

use tailwind_runtime::metrics::Snapshot;

use crate::server_state::ServerState;

/// The numbers.
#[derive(Debug, Default)]
pub struct Stats {
    /// Clients connected.
    pub clients: AtomicU64,
    /// Clients refused because there were too many.
    pub refused: AtomicU64,
    /// Commands received.
    pub commands: AtomicU64,
    /// Commands that were answered with an error before they got anywhere.
    pub errors: AtomicU64,
    /// Keys held.
    pub keys: AtomicU64,
    /// Bytes of keys and values.
    pub bytes: AtomicU64,
    /// LSN of the last record that was applied.
    pub applied: AtomicU64,
    /// First record of the log, as of the last trim or replay.
    pub first: AtomicU64,
    /// Snapshots completed by this process.
    pub snapshots: AtomicU64,
    /// Turns as primary that this process has begun.
    pub turns: AtomicU64,
    /// Backups in the set.
    pub copies: AtomicU64,
}

/// Adds one.
pub fn count(number: &AtomicU64) {
    number.fetch_add(1, Ordering::Relaxed);
}

/// Sets a number.
pub fn set(number: &AtomicU64, value: u64) {
    number.store(value, Ordering::Relaxed);
}

impl Stats {
    fn numbers(&self) -> [(&'static str, &'static str, u64); 11] {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        [
            ("clients", "Clients connected.", of(&self.clients)),
            ("clients_refused_total", "Clients refused because there were too many.", of(&self.refused)),
            ("commands_total", "Commands received.", of(&self.commands)),
            ("commands_invalid_total", "Commands that could not be understood.", of(&self.errors)),
            ("keys", "Keys held.", of(&self.keys)),
            ("bytes", "Bytes that keys and values take.", of(&self.bytes)),
            ("applied_lsn", "LSN of the last record applied.", of(&self.applied)),
            ("first_lsn", "First record of the log when it was last trimmed or read.", of(&self.first)),
            ("snapshots_total", "Snapshots written into the log.", of(&self.snapshots)),
            ("turns_total", "Turns as primary.", of(&self.turns)),
            ("copies", "Backups that acks need, as the sidecar last said.", of(&self.copies)),
        ]
    }

    /// What `/metrics` serves.
    pub fn metrics(&self, state: &ServerState) -> Snapshot {
        let mut now = Snapshot::new([]);
        for (name, help, value) in self.numbers() {
            let full_name = format!("tailwind_kv_{name}");
            match name.ends_with("_total") {
                true => now.counter(&full_name, help, value),
                false => now.gauge(&full_name, help, value),
            }
        }
        let is_primary = matches!(state, ServerState::Primary { .. });
        now.gauge("tailwind_kv_primary", "1 while this server serves.", is_primary.into());
        now
    }

    /// The text of `INFO`.
    pub fn info(&self, state: &ServerState) -> String {
        let mut text = format!(
            "# Server\r\nserver_name:tailwind-kv\r\nserver_version:{}\r\nprocess_id:{}\r\n\r\n# Replication\r\nrole:{}\r\n",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            state.role()
        );
        match state {
            ServerState::Standby { primary: Some(primary), .. } => text.push_str(&format!("primary:{primary}\r\n")),
            ServerState::Primary { epoch, .. } => text.push_str(&format!("epoch:{epoch}\r\n")),
            _ => {}
        }
        text.push_str("\r\n# Stats\r\n");
        for (name, _, value) in self.numbers() {
            text.push_str(&format!("{name}:{value}\r\n"));
        }
        text
    }
}
