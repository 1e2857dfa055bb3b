//! Commands of a group that keeps a table.

use std::rc::Rc;

use super::{Result, ScriptedGroup};
use crate::check::{Does, Operation};
use crate::world::sidecar::Process;

impl ScriptedGroup {
    /// An app sends a request. `put/a/1` puts a key, `delete/a` deletes it, `require/a@7` requires a revision, where 0 means that it
    /// is absent; `put/a@7/1` depends on one. Values are padded to this size.
    pub fn apply(&mut self, sidecar: &str, operations: &[&str], size: usize) -> Result {
        let no = self.sidecar(sidecar)?;
        let operations = operations.iter().map(|word| operation(word, size)).collect::<Result<Vec<_>>>()?;
        if self.world.sidecars[no.0].lead().is_none() || self.world.sidecars[no.0].process != Process::Up {
            return Err(format!("{sidecar} does not lead"));
        }
        self.world.ask_table(no, operations);
        self.run_consequences();
        Ok(())
    }

    /// Tells what is acknowledged of a key.
    pub fn key(&mut self, key: &str) {
        let row = self.world.checks.table_row(key.as_bytes());
        self.trace(match row {
            None => format!("{key} is absent"),
            Some((value, revision)) => {
                let text = String::from_utf8_lossy(&value);
                format!("{key} is {:?}, revision {revision}", text.trim_end_matches('.'))
            }
        });
    }
}

fn operation(word: &str, size: usize) -> Result<Operation> {
    let mut parts = word.splitn(3, '/');
    let (does, key, value) = (parts.next(), parts.next().unwrap_or_default(), parts.next());
    let (key, only_if) = key.split_once('@').map_or((key, None), |(key, revision)| (key, Some(revision)));
    let only_if = only_if.map(str::parse).transpose().map_err(|_| format!("`{word}`: no revision"))?;
    let does = match (does, value) {
        (Some("put"), Some(value)) => {
            let mut value = value.as_bytes().to_vec();
            value.resize(size.max(value.len()), b'.');
            Does::Put(Rc::from(value))
        }
        (Some("delete"), None) => Does::Delete,
        (Some("require"), None) if only_if.is_some() => Does::Require,
        _ => return Err(format!("`{word}` is no operation")),
    };
    Ok(Operation { key: Rc::from(key.as_bytes()), does, only_if })
}
