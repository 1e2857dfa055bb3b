//! Which taints of a node a pod tolerates, as the scheduler sees it.
//!
//! Used by [`placement`](crate::plan) and by the [`pod`](crate::objects::pod) of a backup.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && if key.is_empty() { exists } else { key == taint.key }
        && (exists || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_match_as_in_the_scheduler() {
        let toleration = |text: &str| serde_yaml::from_str::<Toleration>(text).unwrap();
        let rdma = Taint { key: "rdma".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
        for (text, tolerated) in [
            ("{operator: Exists}", true),
            ("{key: rdma, operator: Exists}", true),
            ("{key: rdma, operator: Exists, effect: NoExecute}", false),
            ("{key: rdma, value: yes-please}", false),
            ("{key: rdma}", true),
            ("{key: gpu, operator: Exists}", false),
            ("{}", false),
        ] {
            assert_eq!(tolerates(&toleration(text), &rdma), tolerated, "{text}");
        }
    }
}
