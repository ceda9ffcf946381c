//! Disks that a backup brings back: CDI is told that they are there and clones nothing for them, so nothing is judged, until they become clones.

use golden_catalog::rules::marks;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    harness::{self, Cluster},
    objects::{Disk, Form, RIGHT, data_source, object},
    stand::{CATALOG, Made, Refused, bound_claim, create, stand},
};

const GONE: &str = "gone-with-the-catalog";

/// A disk that is there, whose golden is not.
fn restored(form: Form, name: &str, value: &'static str) -> Value {
    object(form, name, Disk { golden: GONE, annotation: Some((marks::CDI_PREPOPULATED, value)), ..RIGHT })
}

fn is_data_volume(form: Form) -> bool {
    matches!(form, Form::Volume | Form::VolumeOfClaim | Form::Pointer)
}

/// Changes annotations of a DataVolume as anybody with the right may.
async fn annotate(cluster: &Cluster, namespace: &str, name: &str, annotations: Value) -> Result<(), String> {
    let api = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", namespace).await;
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let ask = async || api.patch(name, &PatchParams::default(), &patch).await;
    harness::made(ask).await.map(drop).map_err(|error| error.to_string())
}

fn admitted(made: Result<Made, Refused>) -> Value {
    made.unwrap_or_else(|refused| panic!("{}", refused.message)).object
}

#[tokio::test]
async fn a_backup_brings_disks_back_while_their_golden_is_gone() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    cluster.apply_in(CATALOG, &data_source(GONE).to_string()).await;
    for form in Form::ALL.into_iter().filter(|form| is_data_volume(*form)) {
        let name = format!("back-{form:?}").to_lowercase();
        // The claim as its clone left it, with all that CDI and we wrote on it.
        let mut claim = bound_claim(
            &name,
            "replicated",
            "20Gi",
            json!({}),
            json!({ marks::GOLDEN: GONE, marks::CDI_POPULATED_FOR: name, marks::CDI_SOURCE_NAMESPACE: CATALOG, marks::CDI_CLONE_REQUEST: format!("{CATALOG}/{GONE}"), marks::CDI_CLONE_OF: "true" }),
        );
        claim["spec"]["dataSourceRef"] =
            json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeCloneSource", "name": "volume-clone-source-x" });
        // Without CDI's word that it is filled, the request on it would be heeded.
        let mut unfilled = claim.clone();
        unfilled["metadata"]["annotations"].as_object_mut().expect("annotations").remove(marks::CDI_CLONE_OF);
        let refused = create(cluster, &tenant, &unfilled, true).await.expect_err("a clone of nothing");
        assert!(refused.message.contains(GONE) && refused.message.contains("R13"), "{}", refused.message);
        admitted(create(cluster, &tenant, &claim, false).await);
        for (value, dry_run) in [("", true), ("some-other-disk", true), (&*name, false)] {
            let mut volume = restored(form, &name, "");
            volume["metadata"]["annotations"] = json!({ marks::CDI_PREPOPULATED: value, "tenants": "own" });
            let asked = volume.clone();
            // CDI's webhook gives it to whoever may clone, before ours is asked.
            volume["metadata"]["annotations"][marks::CDI_CLONE_TOKEN] = "the right to clone".into();
            let made = admitted(create(cluster, &tenant, &volume, dry_run).await);
            assert_eq!(made["metadata"]["annotations"], asked["metadata"]["annotations"], "it leaves without the right to clone");
            assert_eq!(made["spec"], asked["spec"], "and is not changed otherwise");
        }
        // What a backup tool and CDI go on to write.
        annotate(cluster, &tenant, &name, json!({ "x": "1", marks::CDI_PREPOPULATED: name })).await.expect("metadata");

        // From here on it would be a clone.
        let refused = annotate(cluster, &tenant, &name, json!({ marks::CDI_PREPOPULATED: null })).await.expect_err("a clone of nothing");
        assert!(refused.contains(GONE) && refused.contains("R13"), "{refused}");
        // However it is led up to.
        annotate(cluster, &tenant, &name, json!({ marks::CDI_CLONE_TOKEN: "found somewhere" })).await.expect("metadata");
        let refused = annotate(cluster, &tenant, &name, json!({ marks::CDI_PREPOPULATED: null })).await.expect_err("a token is no verdict");
        assert!(refused.contains("R13"), "{refused}");
        let both = json!({ marks::CDI_PREPOPULATED: null, marks::CDI_CLONE_TOKEN: null, "cdi.kubevirt.io/storage.prepopulated": "" });
        let refused = annotate(cluster, &tenant, &name, both).await.expect_err("another spelling is another key");
        assert!(refused.contains("R13"), "{refused}");
    }
}

/// What is not CDI's own clone of a DataVolume's source is judged with the annotation as without it.
#[tokio::test]
async fn the_annotation_excuses_no_other_way_to_clone() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    for form in Form::ALL.into_iter().filter(|form| !is_data_volume(*form)) {
        let name = format!("other-{form:?}").to_lowercase();
        let refused = create(cluster, &tenant, &restored(form, &name, ""), false).await.expect_err("it is judged as ever");
        assert!(refused.message.contains("R13"), "{form:?}: {}", refused.message);
    }
    // What fills a claim from outside does not look at it.
    let mut outside = restored(Form::Volume, "outside", "outside");
    outside["spec"].as_object_mut().expect("spec").remove("source");
    outside["spec"]["storage"]["dataSourceRef"] = json!({ "kind": "PersistentVolumeClaim", "namespace": CATALOG, "name": GONE });
    let refused = create(cluster, &tenant, &outside, false).await.expect_err("filled from outside");
    assert!(refused.message.contains("R13"), "{}", refused.message);
    // And without it nothing is new.
    let mut plain = restored(Form::Volume, "plain", "");
    plain["metadata"]["annotations"] = json!({});
    let refused = create(cluster, &tenant, &plain, false).await.expect_err("a clone");
    assert!(refused.message.contains("R13"), "{}", refused.message);
}

/// A clone that was judged may be told so and told otherwise again: what is right stays right.
#[tokio::test]
async fn a_right_clone_stays_right() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    admitted(create(cluster, &tenant, &object(Form::Volume, "right", RIGHT), false).await);
    for annotations in [json!({ marks::CDI_PREPOPULATED: "right" }), json!({ marks::CDI_PREPOPULATED: null })] {
        annotate(cluster, &tenant, "right", annotations).await.unwrap_or_else(|refused| panic!("{refused}"));
    }
    // One that came back in another class than its golden's is let in, and is no clone of it.
    let wrong = Disk { class: Some("local"), annotation: Some((marks::CDI_PREPOPULATED, "wrong")), ..RIGHT };
    admitted(create(cluster, &tenant, &object(Form::Volume, "wrong", wrong), false).await);
    let refused = annotate(cluster, &tenant, "wrong", json!({ marks::CDI_PREPOPULATED: null })).await.expect_err("another class");
    assert!(refused.contains("R14"), "{refused}");
}
