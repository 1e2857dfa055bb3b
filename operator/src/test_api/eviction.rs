//! Whether a [`Cluster`](super::cluster::Cluster) lets a pod be evicted.
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/#how-api-initiated-eviction-works>

use serde_json::{Value, json};

use super::cluster::{is_ending, list, text};

/// What the eviction of `pod` is answered, with the budgets of its namespace; and the budget that has let it go.
pub(super) fn decide<'a>(pod: &Value, budgets: &[(&'a str, &Value)]) -> Result<Option<&'a str>, (u16, Value)> {
    // What has not started, has ended, or ends anyway disrupts nothing.
    if pod["status"]["phase"].as_str().is_none_or(|phase| phase == "Pending") || has_ended(pod) || is_ending(pod) {
        return Ok(None);
    }
    let mut budgets = budgets.iter().filter(|(_, budget)| selects(budget, pod));
    let Some((path, budget)) = budgets.next() else { return Ok(None) };
    if budgets.next().is_some() {
        return refusal(500, "InternalError", "this pod has more than one PodDisruptionBudget");
    }
    let status = &budget["status"];
    let number = |field: &str| status[field].as_u64().unwrap_or(0);
    let (healthy, desired) = (number("currentHealthy"), number("desiredHealthy"));
    if !is_ready(pod) {
        // `IfHealthyBudget` is the default: what is not healthy goes only while the application is not disrupted.
        // <https://kubernetes.io/docs/tasks/run-application/configure-pdb/#unhealthy-pod-eviction-policy>
        let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
        if always || healthy >= desired && desired > 0 {
            return Ok(None);
        }
    }
    // `checkAndDecrement` of the API server: <https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go>
    match () {
        () if status["observedGeneration"] != budget["metadata"]["generation"] => {
            refusal(429, "TooManyRequests", "the budget is still being processed by the server")
        }
        () if number("disruptionsAllowed") > 0 => Ok(Some(path)),
        () => refusal(429, "TooManyRequests", &format!("the budget needs {desired} healthy pods and has {healthy}")),
    }
}

/// What the disruption controller says of a budget.
/// <https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/pod-disruption-budget-v1/#PodDisruptionBudgetStatus>
pub(super) fn status(budget: &Value, pods: &[&Value]) -> Value {
    let healthy = pods.iter().filter(|pod| selects(budget, pod) && is_ready(pod) && !is_ending(pod)).count();
    let desired = budget["spec"]["minAvailable"].as_u64().and_then(|number| usize::try_from(number).ok());
    let desired = desired.expect("budgets of these tests have a number as minAvailable");
    json!({
        "observedGeneration": budget["metadata"]["generation"],
        "currentHealthy": healthy, "desiredHealthy": desired, "disruptionsAllowed": healthy.saturating_sub(desired),
    })
}

fn selects(budget: &Value, pod: &Value) -> bool {
    let mut labels = budget["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten().peekable();
    labels.peek().is_some() && labels.all(|(label, value)| pod["metadata"]["labels"][label] == *value)
}

fn is_ready(pod: &Value) -> bool {
    list(&pod["status"]["conditions"]).any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

pub(super) fn has_ended(pod: &Value) -> bool {
    matches!(text(&pod["status"]["phase"]).as_str(), "Succeeded" | "Failed")
}

fn refusal<T>(code: u16, reason: &str, message: &str) -> Result<T, (u16, Value)> {
    Err((code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})))
}

#[cfg(test)]
mod tests {
    use super::super::shop::{ORDERS, PODS, Shop};
    use super::*;
    use crate::observed::Observed;
    use crate::plan::{Action, plan};
    #[cfg(feature = "planted-bugs")]
    use crate::planted::{self, Bug};

    const BUDGET: &str = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/orders-tailwind-backup";

    /// Three members, all well.
    async fn members() -> (Shop, Vec<String>) {
        let shop = Shop::with_backups(json!({"backups": 3})).await;
        let members = shop.backups();
        shop.write_log(&members).await;
        assert_eq!(min_available(&shop), 2);
        (shop, members)
    }

    fn min_available(shop: &Shop) -> u64 {
        shop.cluster.get(BUDGET).unwrap()["spec"]["minAvailable"].as_u64().unwrap()
    }

    fn fail_fabric(shop: &Shop, pod: &str) {
        let unready = json!({"status": {"conditions": [{"type": "ContainersReady", "status": "False"}]}});
        shop.cluster.change(&format!("{PODS}/{pod}"), &unready);
    }

    /// Reports damage, and the operator has seen it.
    async fn damage(shop: &Shop, pod: &str) {
        shop.report(pod, |report| report.content.damaged = 1);
        shop.reconcile().await;
    }

    /// Does not answer the operator, although its kubelet finds it ready.
    async fn silence(shop: &Shop, pod: &str) {
        let mut observed = shop.look().await;
        observed.reports.insert(pod.to_owned(), Err("no answer within 2 s".to_owned()));
        shop.act(&observed).await.unwrap();
    }

    #[tokio::test]
    async fn one_member_is_evicted_at_a_time() {
        let (shop, members) = members().await;
        assert_eq!([0, 1, 2].map(|member| shop.evict(&members[member])), [201, 429, 429]);
        shop.cluster.stop_deleted_pods();
        assert_eq!(shop.evict(&members[1]), 429, "the first one has no successor yet");
    }

    #[tokio::test]
    async fn no_pod_is_evicted_beside_a_damaged_member() {
        let (shop, members) = members().await;
        damage(&shop, &members[1]).await;
        assert!(min_available(&shop) > 3);
        assert_eq!([0, 1, 2].map(|member| shop.evict(&members[member])), [429; 3]);
        // Nor one that is not ready.
        fail_fabric(&shop, &members[0]);
        assert_eq!([0, 1, 2].map(|member| shop.evict(&members[member])), [429; 3]);
    }

    #[tokio::test]
    async fn no_member_is_evicted_for_one_that_does_not_report() {
        let (shop, members) = members().await;
        silence(&shop, &members[1]).await;
        assert_eq!([0, 1, 2].map(|member| shop.evict(&members[member])), [429; 3]);
    }

    #[tokio::test]
    async fn a_budget_is_not_loosened_before_members_are_asked() {
        let (shop, members) = members().await;
        damage(&shop, &members[1]).await;
        let mut observed = shop.look().await;
        observed.reports.clear();
        shop.act(&observed).await.unwrap();
        assert_eq!([0, 1, 2].map(|member| shop.evict(&members[member])), [429; 3]);
        shop.report(&members[1], |report| report.content.damaged = 0);
        shop.reconcile().await;
        assert_eq!(min_available(&shop), 2, "all say that they are whole");
    }

    #[tokio::test]
    async fn no_member_is_evicted_while_the_fabric_has_failed() {
        let (shop, members) = members().await;
        members.iter().for_each(|member| fail_fabric(&shop, member));
        shop.reconcile().await;
        assert_eq!([0, 1, 2].map(|member| shop.evict(&members[member])), [429; 3]);
    }

    #[tokio::test]
    async fn a_surplus_pod_is_evicted_while_all_members_are_ready() {
        for (failed, expected) in [(0, 201), (1, 429)] {
            let shop = Shop::with_backups(json!({"backups": 4})).await;
            let pods = shop.backups();
            let (surplus, members) = pods.split_last().unwrap();
            shop.write_log(members).await;
            shop.cluster.change(ORDERS, &json!({"spec": {"backups": 3}}));
            members.iter().take(failed).for_each(|member| fail_fabric(&shop, member));
            // It stays, since it does not say what it holds.
            shop.withhold_report(surplus);
            let observed = shop.look().await;
            assert!(!plan(&observed).actions.iter().any(|action| action.to_string().starts_with("delete")));
            shop.act(&observed).await.unwrap();
            assert_eq!(min_available(&shop), 3);
            assert_eq!(shop.evict(surplus), expected, "{failed} members are not ready");
        }
    }

    #[tokio::test]
    async fn pods_that_hold_nothing_any_more_ask_no_budget() {
        let (shop, members) = members().await;
        damage(&shop, &members[1]).await;
        shop.cluster.change(&format!("{PODS}/{}", members[0]), &json!({"status": {"phase": "Failed"}}));
        assert_eq!(shop.evict(&members[0]), 201);
    }

    fn three() -> Value {
        json!({"backups": 3, "minInSync": 2})
    }

    /// Of three members one is to leave, and appends need both others.
    async fn one_too_many() -> (Shop, Observed, String, [String; 2]) {
        one_too_many_in(Shop::with_backups(three()).await).await
    }

    async fn one_too_many_in(shop: Shop) -> (Shop, Observed, String, [String; 2]) {
        let members = shop.backups();
        shop.write_log(&members).await;
        shop.cluster.change(ORDERS, &json!({"spec": {"backups": 2}}));
        let observed = shop.look().await;
        let leaves = |member: &&String| {
            let deletes = |action: &Action| action.to_string() == format!("delete pod {member}");
            plan(&observed).actions.iter().any(deletes)
        };
        let leaver = members.iter().find(leaves).unwrap().clone();
        let others = members.into_iter().filter(|member| *member != leaver).collect::<Vec<_>>();
        (shop, observed, leaver, others.try_into().unwrap())
    }

    /// The disruption controller is the last to hear that a member was deleted. Until then it counts it.
    #[tokio::test]
    async fn nobody_is_evicted_beside_a_member_that_the_operator_removes() {
        let (shop, observed, leaver, others) = one_too_many().await;
        shop.cluster.let_disruption_lag(true);
        shop.act(&observed).await.unwrap();
        assert!(is_ending(&shop.pod(&leaver).unwrap()));
        assert_eq!(others.each_ref().map(|member| shop.evict(member)), [429; 2]);
        shop.cluster.let_disruption_lag(false);
        assert_eq!(others.each_ref().map(|member| shop.evict(member)), [429; 2]);
        shop.cluster.stop_deleted_pods();
        shop.reconcile().await;
        assert_eq!(min_available(&shop), 2, "as before");
    }

    /// The API server dates the end of a pod. By the clock of this machine, which is months off, the pod would hang in its end.
    #[tokio::test]
    async fn a_pod_that_ends_keeps_the_budget_by_the_servers_clock() {
        let (shop, observed, leaver, others) = one_too_many_in(Shop::with_backups_and_time(three()).await).await;
        shop.act(&observed).await.unwrap();
        assert!(is_ending(&shop.pod(&leaver).unwrap()));
        shop.reconcile().await;
        assert!(min_available(&shop) > 3);
        assert_eq!(others.each_ref().map(|member| shop.evict(member)), [429; 2]);
    }

    /// What was evicted right before is not in the pods yet, but in the budget.
    #[tokio::test]
    async fn a_member_stays_while_another_is_about_to_be_evicted() {
        let (shop, observed, leaver, [other, _]) = one_too_many().await;
        shop.cluster.let_disruption_lag(true);
        shop.cluster.change(BUDGET, &json!({"status": {"disruptedPods": {&other: "2026-06-01T12:00:00Z"}}}));
        let error = shop.act(&observed).await.unwrap_err().to_string();
        assert!(error.contains(&format!("{other} leaves as well")), "{error}");
        assert!(!is_ending(&shop.pod(&leaver).unwrap()));
    }

    /// The API server asks of a pod that is not ready whether the budget is met that was observed last.
    #[tokio::test]
    async fn an_unready_member_is_no_proof_before_its_budget_is_seen() {
        let (shop, observed, leaver, [other, _]) = one_too_many().await;
        shop.cluster.let_disruption_lag(true);
        fail_fabric(&shop, &other);
        let error = shop.act(&observed).await.unwrap_err().to_string();
        assert!(error.contains(&format!("{other} is not ready")), "{error}");
        assert!(!is_ending(&shop.pod(&leaver).unwrap()));
        shop.cluster.let_disruption_lag(false);
        shop.act(&observed).await.unwrap();
        assert!(is_ending(&shop.pod(&leaver).unwrap()));
        assert_eq!(shop.evict(&other), 429);
    }

    /// Between the write of the budget and the deletion somebody replaces it, loosens it or deletes it.
    #[tokio::test]
    async fn a_member_stays_if_its_budget_is_another_one_by_now() {
        let loose = json!({"spec": {"minAvailable": 1}});
        let foreign = json!({"metadata": {"ownerReferences": []}});
        for change in [Some(loose), Some(foreign), None] {
            let (shop, observed, leaver, _) = one_too_many().await;
            let actions = plan(&observed).actions;
            let deletion = actions.iter().position(|action| matches!(action, Action::Delete(_))).unwrap();
            let (before, deletion) = actions.split_at(deletion);
            shop.act_on(&observed, before).await.unwrap();
            match &change {
                Some(change) => shop.cluster.change(BUDGET, change),
                None => assert_eq!(shop.cluster.delete(BUDGET).0, 200),
            }
            let error = shop.act_on(&observed, deletion).await.unwrap_err().to_string();
            assert!(error.contains("the budget"), "{error}");
            assert!(!is_ending(&shop.pod(&leaver).unwrap()), "{change:?}");
        }
    }

    /// Without a budget evictions are the administrator's own business.
    #[tokio::test]
    async fn a_member_leaves_without_a_budget_where_none_is_wanted() {
        let (shop, _, leaver, _) = one_too_many().await;
        shop.cluster.change(ORDERS, &json!({"spec": {"disruptionBudget": false}}));
        shop.reconcile().await;
        assert!(!shop.cluster.has(BUDGET) && is_ending(&shop.pod(&leaver).unwrap()));
    }

    #[tokio::test]
    async fn a_member_stays_if_its_budget_cannot_be_tightened() {
        let (shop, observed, leaver, _) = one_too_many().await;
        shop.forbid("UPDATE", "policy", "poddisruptionbudgets");
        let error = shop.act(&observed).await.unwrap_err().to_string();
        assert!(error.contains("nobody may UPDATE poddisruptionbudgets"), "{error}");
        assert!(!is_ending(&shop.pod(&leaver).unwrap()));
    }

    /// What the tests above would not see, were the budget another one.
    #[cfg(feature = "planted-bugs")]
    #[tokio::test]
    async fn planted_budgets_let_copies_go() {
        planted::plant(Some(Bug::EvictsUnready));
        let (shop, members) = members().await;
        members.iter().for_each(|member| fail_fabric(&shop, member));
        assert_eq!([0, 1, 2].map(|member| shop.evict(&members[member])), [201; 3]);

        planted::plant(Some(Bug::EvictsBesideDamage));
        let (shop, members) = self::members().await;
        damage(&shop, &members[1]).await;
        assert_eq!(shop.evict(&members[0]), 201);

        planted::plant(Some(Bug::EvictsBesideSilence));
        let (shop, members) = self::members().await;
        silence(&shop, &members[1]).await;
        assert_eq!(shop.evict(&members[0]), 201);
        planted::plant(None);
    }
}
