//! The goldens of an image: those on record, and those that it would make, each with its target.
//!
//! Asked before anything is made, by whoever must know what a name stands for: a clone that waits for a golden is admitted, counted and told
//! by what is foreseen here, and an image wakes by it. What makes goldens names them by [`GoldenImageStatus::next_name`], as this does.

use super::{
    conditions::{ConditionType, is_true},
    status::{GoldenImageStatus, TargetStatus},
};
use crate::model::{ClassName, GoldenName, Image, InvalidValue, SchematicId, Target};

/// One golden of an image.
#[derive(Debug, Clone)]
pub struct ImageGolden<'a> {
    /// What it is called. `None` where nobody knows yet: no factory has given the schematic's ID, its class is the cluster's default and that
    /// was not told, or the class has a golden of the image already.
    pub derived: Option<Result<String, InvalidValue>>,
    /// The target that it is for; `None` where that was taken out, or the spec cannot be read.
    pub target: Option<&'a Target>,
    /// What is known of it, or of its target.
    pub status: Option<&'a TargetStatus>,
    /// Whether no other target can come to this name: until a golden is on record, the name without a class is for whichever is made first.
    pub is_settled: bool,
}

impl ImageGolden<'_> {
    /// Its name, where that is known and good.
    pub fn name(&self) -> Option<&str> {
        self.derived.as_ref()?.as_deref().ok()
    }

    /// Whether it is on record; else it is foreseen.
    pub fn is_recorded(&self) -> bool {
        self.status.is_some_and(|status| status.golden.is_some())
    }

    /// Its class, frozen or as it would be; `default` is the cluster's.
    fn class(&self, default: Option<&ClassName>) -> Option<String> {
        let recorded = self.status.filter(|status| status.golden.is_some());
        let frozen = recorded.and_then(|status| status.storage_class_name.clone());
        let named = || recorded.map(|status| status.requested_class.clone()).filter(|class| !class.is_empty());
        let wanted = || self.target.and_then(|target| target.class.as_ref().or(default)).map(ToString::to_string);
        frozen.or_else(named).or_else(wanted)
    }
}

impl GoldenImageStatus {
    /// The name of the golden that is made next, in this class: the first of an image that is on record has the name without it.
    pub fn next_name(
        &self,
        image: &Image,
        resolved: Option<&SchematicId>,
        class: Option<&ClassName>,
    ) -> Option<Result<GoldenName, InvalidValue>> {
        image.golden_name(resolved, class.filter(|_| self.has_any_golden()))
    }

    /// The goldens of `image`, whose status this is: those of its targets in their order, then those whose target was taken out. Of an image
    /// that cannot be read, those on record.
    ///
    /// `resolved` is the ID of its schematic, as far as that is known, and `default` the cluster's default class. Goldens are made in the
    /// order of the targets, and a target that will not come right without a change keeps no name from the next one.
    pub fn goldens<'a>(
        &'a self,
        image: Option<&'a Image>,
        resolved: Option<&SchematicId>,
        default: Option<&ClassName>,
    ) -> Vec<ImageGolden<'a>> {
        let recorded = |status: &'a TargetStatus, target| ImageGolden {
            derived: status.golden.clone().map(Ok),
            target,
            status: Some(status),
            is_settled: true,
        };
        let Some(image) = image else {
            return self.targets.iter().filter(|status| status.golden.is_some()).map(|status| recorded(status, None)).collect();
        };
        let of = |target: &Target| self.targets.iter().find(|status| status.requested_class == target.requested_class());
        let is_stalled = |target: &Target| of(target).is_some_and(|status| is_true(&status.conditions, ConditionType::Stalled));
        let first = (0..image.targets.len()).filter(|_| !self.has_any_golden()).min_by_key(|at| is_stalled(&image.targets[*at]));
        let foreseen = |at: usize, target: &'a Target| {
            let is_first = first == Some(at);
            let class = target.class.as_ref().or(default);
            let named = if is_first { Some(None) } else { class.map(Some) };
            ImageGolden {
                derived: named.and_then(|class| image.golden_name(resolved, class)).map(|name| name.map(|name| name.to_string())),
                target: Some(target),
                status: of(target),
                is_settled: !is_first || image.targets.len() == 1,
            }
        };
        let wanted = image.targets.iter().enumerate().map(|(at, target)| match of(target).filter(|status| status.golden.is_some()) {
            Some(status) => recorded(status, Some(target)),
            None => foreseen(at, target),
        });
        let mut goldens: Vec<_> = wanted.chain(self.without_target(image).into_iter().map(|status| recorded(status, None))).collect();
        // A class is there once: for the target that has its golden on record, wherever it stands, else for the first of them.
        let classes: Vec<_> = goldens.iter().map(|golden| (golden.is_recorded(), golden.class(default))).collect();
        for (at, golden) in goldens.iter_mut().enumerate().filter(|(_, golden)| !golden.is_recorded()) {
            let is_of_it = |other: usize| classes[other].1.is_some() && classes[other].1 == classes[at].1;
            if (0..classes.len()).any(|other| other != at && (classes[other].0 || other < at) && is_of_it(other)) {
                golden.derived = None;
            }
        }
        goldens
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::{GoldenImage, parse_image};

    fn stalled(class: &str) -> Value {
        let stalled = json!({ "type": "Stalled", "status": "True", "reason": "ClassNotFound", "message": "", "lastTransitionTime": "2026-11-30T10:00:00Z" });
        json!({ "requestedClass": class, "conditions": [stalled] })
    }

    fn made(class: &str, golden: &str) -> Value {
        json!({ "requestedClass": class, "golden": golden })
    }

    /// Each golden as `class: name`, with `!` where it is on record and `?` where another may come to the name.
    fn told(classes: &[&str], status: Value, default: Option<&str>) -> Vec<String> {
        let targets: Vec<Value> = classes.iter().map(|class| json!({ "storageClassName": class })).collect();
        let object: GoldenImage = serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" },
            "spec": { "source": { "http": { "url": "https://e.example/a" } }, "storage": { "targets": targets } },
            "status": { "targets": status },
        }))
        .expect("an image");
        let (image, status) = (parse_image(&object).expect("good"), object.status.expect("status"));
        let default = default.map(|class| class.parse().expect("a class"));
        let shown = |golden: &ImageGolden<'_>| {
            let class = golden.target.map_or("(out)", Target::requested_class);
            let name = golden.name().unwrap_or("-").replace("vm-default-images-", "");
            let recorded = if golden.is_recorded() { "!" } else { "" };
            format!("{class}: {name}{recorded}{}", if golden.is_settled { "" } else { "?" })
        };
        status.goldens(Some(&image), None, default.as_ref()).iter().map(shown).collect()
    }

    const NAME: &str = "vm-default-images-a";
    const IN_B: &str = "vm-default-images-a-b";

    #[rstest]
    #[case::one(&["x"], json!([]), None, &["x: a"])]
    #[case::nothing_on_record(&["x", "b"], json!([]), None, &["x: a?", "b: a-b"])]
    #[case::in_another_order(&["b", "x"], json!([]), None, &["b: a?", "x: a-x"])]
    #[case::the_first_cannot_be_made(&["x", "b"], json!([stalled("x")]), None, &["x: a-x", "b: a?"])]
    #[case::none_can_be_made(&["x", "b"], json!([stalled("x"), stalled("b")]), None, &["x: a?", "b: a-b"])]
    #[case::the_first_on_record(&["x", "b"], json!([made("x", NAME)]), None, &["x: a!", "b: a-b"])]
    #[case::the_second_was_made_first(&["x", "b"], json!([made("b", NAME)]), None, &["x: a-x", "b: a!"])]
    #[case::the_second_alone(&["x", "b"], json!([made("b", IN_B)]), None, &["x: a-x", "b: a-b!"])]
    #[case::both(&["x", "b"], json!([made("x", NAME), made("b", IN_B)]), None, &["x: a!", "b: a-b!"])]
    #[case::put_in_another_order(&["b", "x"], json!([made("x", NAME)]), None, &["b: a-b", "x: a!"])]
    #[case::a_new_class_before_it(&["c", "x", "b"], json!([made("x", NAME), made("b", IN_B)]), None, &["c: a-c", "x: a!", "b: a-b!"])]
    #[case::a_target_taken_out(&["x"], json!([made("x", NAME), made("b", IN_B)]), None, &["x: a!", "(out): a-b!"])]
    #[case::the_first_taken_out(&["b"], json!([made("x", NAME)]), None, &["b: a-b", "(out): a!"])]
    #[case::the_default_is_first(&["", "b"], json!([]), None, &[": a?", "b: a-b"])]
    #[case::the_default_is_not_first(&["x", ""], json!([]), None, &["x: a?", ": -"])]
    #[case::and_it_is_known(&["x", ""], json!([]), Some("b"), &["x: a?", ": a-b"])]
    #[case::the_default_beside_a_record(&["", "x"], json!([made("x", NAME)]), None, &[": -", "x: a!"])]
    #[case::the_default_is_another_target(&["x", "b", ""], json!([]), Some("b"), &["x: a?", "b: a-b", ": -"])]
    #[case::the_default_is_the_first(&["b", ""], json!([]), Some("b"), &["b: a?", ": -"])]
    #[case::its_class_still_has_a_golden(&["x", ""], json!([made("x", NAME), made("b", IN_B)]), Some("b"), &["x: a!", ": -", "(out): a-b!"])]
    #[case::taken_over_under_another_name(&["x", "b"], json!([made("x", "ubuntu")]), None, &["x: ubuntu!", "b: a-b"])]
    fn an_images_goldens(#[case] classes: &[&str], #[case] status: Value, #[case] default: Option<&str>, #[case] expected: &[&str]) {
        assert_eq!(told(classes, status, default), expected);
    }

    #[test]
    fn an_image_that_cannot_be_read_has_those_on_record() {
        let status: GoldenImageStatus = serde_json::from_value(json!({ "targets": [made("x", NAME), stalled("b")] })).expect("status");
        let goldens = status.goldens(None, None, None);
        assert_eq!(goldens.iter().map(ImageGolden::name).collect::<Vec<_>>(), [Some(NAME)]);
    }

    /// Of what is made next the name was foreseen, in whatever order the targets are made.
    #[test]
    fn what_is_made_next_has_the_name_that_was_foreseen() {
        let object: GoldenImage = serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" },
            "spec": { "source": { "http": { "url": "https://e.example/a" } }, "storage": { "targets": [{ "storageClassName": "x" }, { "storageClassName": "b" }, { "storageClassName": "c" }] } },
        }))
        .expect("an image");
        let image = parse_image(&object).expect("good");
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let mut status = GoldenImageStatus::default();
            for at in order {
                let target = &image.targets[at];
                let name = status.next_name(&image, None, target.class.as_ref()).expect("known").expect("good").to_string();
                let goldens = status.goldens(Some(&image), None, None);
                // The name without a class was foreseen for the first target, and for whichever is made first.
                let foreseen = if status.has_any_golden() { &goldens[at] } else { &goldens[0] };
                assert_eq!((foreseen.name(), foreseen.is_settled), (Some(name.as_str()), status.has_any_golden()), "{order:?}");
                status.targets.push(TargetStatus {
                    requested_class: target.requested_class().to_owned(),
                    golden: Some(name),
                    ..TargetStatus::default()
                });
            }
        }
    }
}
