//! What needs a leader, on a cluster of its own: in the shared one it would work on the images of other tests.

use crate::{
    certificates, fence, moments, orders,
    stand::{Stand, own_cluster, stand},
};

#[tokio::test(flavor = "multi_thread")]
async fn leaders_come_and_go() {
    if stand().await.is_none() {
        return;
    }
    let cluster = own_cluster().await;
    let odd = moments::an_odd_machine(&cluster).await;
    let stand = Stand::build(&cluster).await;
    moments::what_cannot_be_read_and_may_need_a_golden_holds_it(&cluster, &stand, odd).await;
    moments::a_consumer_at_each_moment_of_a_retirement_wins_or_loses(&cluster, &stand).await;
    moments::what_the_leader_does_not_hear_costs_no_golden(&cluster, &stand).await;
    fence::force_is_told(&cluster, &stand).await;
    orders::admission_works_before_cdis_webhook_and_after_it(&cluster).await;
    certificates::another_ca_is_served_once_callers_are_told(&cluster).await;
    certificates::are_replaced_while_calls_go_on(&cluster, &stand, certificates::Until::Published).await;
    let metrics = stand.metrics().await;
    let left = metrics.lines().find_map(|line| line.strip_prefix("golden_image_certificate_remaining_seconds{certificate=\"webhook\"} "));
    let left: f64 = left.and_then(|left| left.parse().ok()).unwrap_or_else(|| panic!("{metrics}"));
    assert!(left > 86_400.0, "{left}");
}

/// `make soak`: a certificate by another CA is served a minute after its CA was published.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "waits for a minute"]
async fn a_certificate_by_another_ca_is_served_in_the_end() {
    if stand().await.is_none() {
        return;
    }
    let cluster = own_cluster().await;
    let stand = Stand::build(&cluster).await;
    certificates::are_replaced_while_calls_go_on(&cluster, &stand, certificates::Until::Served).await;
}
