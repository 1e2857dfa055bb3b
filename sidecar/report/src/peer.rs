//! What a standby or a reader tells its primary about once a second, so that the primary can say who follows it.
//!
//! Sent and taken by sidecars. It changes nothing of the log: a primary that hears nothing knows less, and works as before.

use serde::{Deserialize, Serialize};

use crate::sidecar::{FollowReport, Takeover};

/// Where it is sent to: POST, answered by an empty object.
pub const PATH: &str = "/v1/peer";

/// A note of a sidecar that is not primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerNote {
    /// The sender's group; a primary of another one refuses the note.
    pub group: String,
    /// The sender.
    pub name: String,
    /// It never becomes primary.
    pub reads_only: bool,
    /// Whether it could take over; absent if it only reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<Takeover>,
    /// An app is connected to it.
    pub app: bool,
    /// How far it follows the log; absent while nobody asks it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<FollowReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_pinned() {
        let note = PeerNote {
            group: "orders".to_owned(),
            name: "db-1".to_owned(),
            reads_only: false,
            takeover: Some(Takeover { ready: false, why_not: Some("1 of 3 members answers".to_owned()) }),
            app: true,
            follow: Some(FollowReport { from: "b0".to_owned(), lsn: 7, lag_ms: Some(25), stale: false }),
        };
        let json = r#"{"group":"orders","name":"db-1","reads_only":false,"takeover":{"ready":false,"why_not":"1 of 3 members answers"},"#;
        let json = format!(r#"{json}"app":true,"follow":{{"from":"b0","lsn":7,"lag_ms":25,"stale":false}}}}"#);
        assert_eq!(serde_json::to_string(&note).unwrap(), json);
        assert_eq!(serde_json::from_str::<PeerNote>(&json).unwrap(), note);
        let reader = r#"{"group":"orders","name":"feed-0","reads_only":true,"app":false}"#;
        assert_eq!(serde_json::from_str::<PeerNote>(reader).unwrap().takeover, None);
    }
}
