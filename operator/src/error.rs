//! What can go wrong with a group, sorted by what is done next. A group that goes wrong never stops the others.
//!
//! Made by [`observe`](crate::observe) and [`apply`](crate::apply), judged by [`controller`](crate::controller).

use std::time::Duration;

#[derive(Debug, thiserror::Error)]
#[error("{doing}: {source}")]
pub(crate) struct Error {
    pub(crate) doing: String,
    #[source]
    pub(crate) source: Cause,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    /// What the API server has answered.
    #[error("{}", said(.0))]
    Api(#[from] kube::Error),
    /// Admission has changed what was written.
    #[error(
        "something in the cluster changes {0} (a mutating webhook or an admission policy): exempt what has the label \
         app.kubernetes.io/managed-by=tailwind-operator"
    )]
    Altered(String),
    /// No certificate could be made.
    #[error(transparent)]
    Certificate(rcgen::Error),
    /// The backups that were to hold what a pod holds no longer prove it.
    #[error("{0}: looking again")]
    NotHeld(String),
    /// The log is not any more as it was when this was decided.
    #[error("decided when the log was at {planned}, and it is at {now}: looking again")]
    Outdated {
        /// The log then.
        planned: String,
        /// The log now.
        now: String,
    },
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Another writer was faster: look again at once.
    Conflict,
    /// The namespace is being deleted, and the group with it: nothing is wrong, and nothing can be made any more.
    Ending,
    /// Not allowed, by permissions, quotas or admission: an administrator must act, and no event says when, so look again every
    /// minute.
    Refused,
    /// The API server says that what was sent is wrong: a bug, or rules of the cluster.
    Invalid,
    /// The API server cannot be reached, or cannot answer now.
    Unavailable,
    /// The operator itself cannot do it: a bug.
    Internal,
}

impl Class {
    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Class::Conflict => "conflict",
            Class::Ending => "ending",
            Class::Refused => "refused",
            Class::Invalid => "invalid",
            Class::Unavailable => "unavailable",
            Class::Internal => "internal",
        }
    }

    /// The wait before the next try, after so many failures in a row.
    pub(crate) fn wait(self, failures: u32) -> Duration {
        let (first, most) = match self {
            Class::Conflict => (1, 15),
            Class::Unavailable => (1, 60),
            Class::Refused => (5, 60),
            Class::Ending | Class::Invalid | Class::Internal => (5, 300),
        };
        let doubled: u64 = first << failures.saturating_sub(1).min(10);
        Duration::from_secs(doubled.min(most))
    }
}

impl Error {
    /// What is done next.
    pub(crate) fn class(&self) -> Class {
        let source = match &self.source {
            Cause::Api(source) => source,
            Cause::Certificate(_) => return Class::Internal,
            Cause::Altered(_) => return Class::Refused,
            Cause::Outdated { .. } | Cause::NotHeld(_) => return Class::Conflict,
        };
        let kube::Error::Api(status) = source else { return Class::Unavailable };
        if is_ending(source) {
            return Class::Ending;
        }
        match status.code {
            404 | 409 | 410 => Class::Conflict,
            401 | 403 => Class::Refused,
            400..=499 if status.code != 429 => Class::Invalid,
            _ => Class::Unavailable,
        }
    }
}

/// What the API server has said, without the answer's innards.
fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// True if nothing can be made because its namespace is being deleted.
pub(crate) fn is_ending(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403 && causes.any(|cause| cause.reason == "NamespaceTerminating")
}

/// Says what was being done when a call failed.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Doing<T> for Result<T, kube::Error> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error { doing: what(), source: Cause::Api(source) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use serde_json::json;

    fn answered(code: u16) -> Error {
        let status = Status::failure("no", "Reason").with_code(code);
        Error { doing: "create pod a".to_owned(), source: Cause::Api(kube::Error::Api(Box::new(status))) }
    }

    #[test]
    fn errors_are_classified_by_status_code() {
        for (code, class) in [
            (409, Class::Conflict),
            (403, Class::Refused),
            (422, Class::Invalid),
            (429, Class::Unavailable),
            (500, Class::Unavailable),
        ] {
            assert_eq!(answered(code).class(), class, "{code}");
        }
        assert_eq!(answered(403).to_string(), "create pod a: no");
        let no_key = Error {
            doing: "make a certificate for a".to_owned(),
            source: Cause::Certificate(rcgen::Error::RingUnspecified),
        };
        assert_eq!(no_key.class(), Class::Internal);
    }

    #[test]
    fn a_terminating_namespace_is_not_a_refusal() {
        let cause = json!({"reason": "NamespaceTerminating", "message": "namespace shop is being terminated"});
        let status = json!({"status": "Failure", "reason": "Forbidden", "code": 403, "details": {"causes": [cause]}});
        let status: Status = serde_json::from_value(status).unwrap();
        let error = Error { doing: "create pod a".to_owned(), source: Cause::Api(kube::Error::Api(Box::new(status))) };
        assert_eq!(error.class(), Class::Ending);
    }

    #[test]
    fn waits_grow_up_to_a_maximum() {
        assert_eq!(Class::Refused.wait(1), Duration::from_secs(5));
        assert_eq!(Class::Refused.wait(3), Duration::from_secs(20));
        assert_eq!(Class::Refused.wait(1000), Duration::from_secs(60));
        assert_eq!(Class::Invalid.wait(1000), Duration::from_secs(300));
    }
}
