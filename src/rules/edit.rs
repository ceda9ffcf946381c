//! R3 and R4: what an image is cannot change under its name, and no two names are one image.

use std::fmt::Display;

use crate::model::{Digest, HttpUrl, Image, Target};

/// One edit of a frozen field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrozenChange {
    /// The field's path in the spec.
    pub field: String,
    /// The value that is frozen.
    pub old: String,
    /// The value that was asked for.
    pub new: String,
}

/// How far a target is bound by its golden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freeze {
    /// None was begun: it may be corrected or taken away.
    Free,
    /// One was begun and none was made: it may be corrected, and taken away as one that was made may.
    Begun,
    /// One was made, or is being made.
    Made,
}

impl From<bool> for Freeze {
    fn from(is_made: bool) -> Self {
        if is_made { Self::Made } else { Self::Free }
    }
}

/// R4: the edits of frozen fields from `old` to `new`. A quantity spelled another way is no edit; `digest` may be set once.
///
/// `freeze` says of a class, as a target names it (empty: the default one), how far its golden binds that target; until one is made it
/// may still be corrected, whatever its siblings are. A frozen target may be taken out, which has its golden
/// go (R23), but by no edit that adds another: that would be its class changed, and the golden that pools name gone for one of
/// another name.
pub fn frozen_changes<F: Into<Freeze>>(old: &Image, new: &Image, freeze: impl Fn(&str) -> F) -> Vec<FrozenChange> {
    let mut changes = Vec::new();
    let mut compare = |field: &str, old: String, new: String| {
        if old != new {
            changes.push(FrozenChange { field: field.to_owned(), old, new });
        }
    };
    for ((field, old), (_, new)) in source_fields(old).into_iter().zip(source_fields(new)) {
        match (old.shown(), new.shown()) {
            // What may hold a secret is compared, and not repeated.
            (was, is) if was == is && old != new => compare(field, was, format!("{is} with another query")),
            (was, is) => compare(field, was, is),
        }
    }
    if let Some(digest) = &old.digest {
        compare("digest", digest.to_string(), or_none(new.digest.as_ref()));
    }
    let usages = |image: &Image| image.usages.iter().map(|usage| usage.as_str()).collect::<Vec<_>>().join(", ");
    compare("usages", usages(old), usages(new));
    let adds_a_class = new.targets.iter().any(|target| old.targets.iter().all(|known| known.class != target.class));
    for target in &old.targets {
        let freeze = freeze(target.requested_class()).into();
        if freeze == Freeze::Free {
            continue;
        }
        let class = target.class.as_ref().map_or("the default class", |class| class.as_str());
        match new.targets.iter().find(|other| other.class == target.class) {
            None if !adds_a_class => {}
            None => compare(&format!("storage.targets ({class})"), describe(target), "removed".to_owned()),
            Some(_) if freeze == Freeze::Begun => {}
            Some(other) => compare(&format!("storage.targets ({class})"), describe(target), describe(other)),
        }
    }
    changes
}

/// R4's message about an entry or object: the fields, old → new, and the supported move.
pub fn frozen_message(subject: &str, changes: &[FrozenChange]) -> String {
    let list: Vec<_> = changes.iter().map(|change| format!("`{}`: {} → {}", change.field, change.old, change.new)).collect();
    format!(
        "{subject} was edited in fields that are frozen once its golden exists: {}. Nothing was changed. The supported move is a new entry (a new schematicID and version, or a new name) beside this one: move the pools to it, then retire this one.",
        list.join("; ")
    )
}

/// The message where two images want one golden name, such as `a` in class `b`, and `a-b`: the later is refused, naming the first.
pub fn taken_name_message(golden: &str, first: &str) -> String {
    format!("The golden {golden} is the one of the image {first}: make this image anew under another name.")
}

/// R3's message: `later` is the same image as `first`, which is known by `same`.
pub fn duplicate_message(later: &str, first: &str, same: impl Display) -> String {
    format!("{later} is the same image as {first} ({same}): remove one of them; {first} serves both.")
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

fn describe(target: &Target) -> String {
    let mut text = target.size.map_or_else(|| "size of the image".to_owned(), |size| size.to_string());
    if let Some(mode) = target.volume_mode {
        text = format!("{text}, {mode}");
    }
    if !target.access_modes.is_empty() {
        text = format!("{text}, {}", target.access_modes.join("+"));
    }
    text
}

/// A value of a field of the source.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    None,
    Text(String),
    Url(HttpUrl),
    Document(serde_json::Value),
}

impl Part {
    /// The value as a message repeats it: bounded, without what may be a secret.
    fn shown(&self) -> String {
        const LONGEST: usize = 300;
        let text = match self {
            Self::None => "none".to_owned(),
            Self::Text(text) => text.clone(),
            Self::Url(url) => url.public(),
            Self::Document(document) => document.to_string(),
        };
        match text.char_indices().nth(LONGEST) {
            // Two long documents that differ at their end must not read alike.
            Some((cut, _)) => format!("{}… ({})", &text[..cut], Digest::of(text.as_bytes())),
            None => text,
        }
    }
}

fn source_fields(image: &Image) -> Vec<(&'static str, Part)> {
    use crate::model::{Schematic, Source};
    let mut fields = vec![
        ("schematicID", Part::None),
        ("schematic", Part::None),
        ("version", Part::None),
        ("platform", Part::None),
        ("secureBoot", Part::None),
        ("factoryURL", Part::None),
        ("reference", Part::None),
        ("url", Part::None),
        ("architecture", Part::Text(image.source.architecture().to_string())),
    ];
    let mut set = |name: &str, value: Part| {
        if let Some(field) = fields.iter_mut().find(|(field, _)| *field == name) {
            field.1 = value;
        }
    };
    match &image.source {
        Source::TalosFactory(talos) => {
            match &talos.schematic {
                Schematic::Id(id) => set("schematicID", Part::Text(id.to_string())),
                Schematic::Document(document) => set("schematic", Part::Document(document.clone())),
            }
            set("version", Part::Text(talos.version.to_string()));
            set("platform", Part::Text(talos.platform.to_string()));
            set("secureBoot", Part::Text(talos.secure_boot.to_string()));
            set("factoryURL", Part::Url(talos.factory_url.clone()));
        }
        Source::ContainerDisk { reference, .. } => set("reference", Part::Text(reference.to_string())),
        Source::Http { url, .. } => set("url", Part::Url(url.clone())),
    }
    fields
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::frozen_changes;
    use crate::{api::parse_image, model::Image};

    fn image(spec: Value) -> Image {
        let object = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" }, "spec": spec });
        parse_image(&serde_json::from_value(object).expect("readable")).expect("good")
    }

    fn http(url: &str, more: Value) -> Image {
        let mut spec = json!({ "source": { "http": { "url": url } } });
        spec.as_object_mut().expect("map").extend(more.as_object().expect("map").clone());
        image(spec)
    }

    const URL: &str = "https://example.org/a";

    #[rstest]
    #[case(json!({}), json!({}), &[])]
    #[case(json!({}), json!({ "description": "new" }), &[])]
    #[case(json!({ "storage": { "targets": [{ "size": "6Gi" }] } }), json!({ "storage": { "targets": [{ "size": "6144Mi" }] } }), &[])]
    #[case(json!({ "storage": { "targets": [{ "size": "6Gi" }] } }), json!({ "storage": { "targets": [{ "size": "6Gi" }, { "storageClassName": "local" }] } }), &[])]
    #[case(json!({ "storage": { "targets": [{ "size": "6Gi" }] } }), json!({ "storage": { "targets": [{ "size": "7Gi" }] } }), &["storage.targets (the default class)"])]
    #[case(json!({ "storage": { "targets": [{ "storageClassName": "a" }] } }), json!({ "storage": { "targets": [{ "storageClassName": "b" }] } }), &["storage.targets (a)"])]
    #[case(json!({}), json!({ "digest": format!("sha256:{}", "0".repeat(64)) }), &[])]
    #[case(json!({ "digest": format!("sha256:{}", "0".repeat(64)) }), json!({}), &["digest"])]
    #[case(json!({}), json!({ "usages": ["Worker"] }), &["usages"])]
    fn r4_knows_an_edit_from_another_spelling(#[case] old: Value, #[case] new: Value, #[case] fields: &[&str]) {
        let changes = frozen_changes(&http(URL, old), &http(URL, new), |_| true);
        assert_eq!(changes.iter().map(|change| change.field.as_str()).collect::<Vec<_>>(), fields);
    }

    #[test]
    fn r4_names_old_and_new() {
        let talos = |version: &str| image(json!({ "source": { "talosFactory": { "schematicID": "ce4c", "version": version } } }));
        let changes = frozen_changes(&talos("v1.13.6"), &talos("v1.13.7"), |_| true);
        assert_eq!((changes[0].field.as_str(), changes[0].old.as_str(), changes[0].new.as_str()), ("version", "v1.13.6", "v1.13.7"));
        assert_eq!(
            frozen_changes(&talos("v1.13.6"), &http(URL, json!({})), |_| true).iter().map(|c| c.field.as_str()).collect::<Vec<_>>(),
            ["schematicID", "version", "platform", "secureBoot", "factoryURL", "url", "usages"]
        );
    }

    /// A query is part of what an image is, and may be a secret: another one is an edit, told without it.
    #[test]
    fn r4_another_query_is_an_edit_and_is_not_repeated() {
        let (old, new) = (http("https://e.example/a?t=hunter2", json!({})), http("https://e.example/a?t=hunter3", json!({})));
        let changes = frozen_changes(&old, &new, |_| false);
        assert_eq!(changes.len(), 1);
        let message = super::frozen_message("images[0] (a)", &changes);
        assert!(message.contains("`url`: https://e.example/a?… → https://e.example/a?… with another query"), "{message}");
        assert!(!message.contains("hunter"), "{message}");
    }

    #[test]
    fn r4_sees_a_key_added_to_a_schematic_and_no_other_spelling() {
        let talos = |document: Value| image(json!({ "source": { "talosFactory": { "schematic": document, "version": "v1.13.6" } } }));
        let old = talos(json!("customization:\n  a: 1\n"));
        assert_eq!(frozen_changes(&old, &talos(json!({ "customization": { "a": 1 } })), |_| true), []);
        let added = frozen_changes(&old, &talos(json!("{customization: {a: 1}, overlay: {image: x}}")), |_| true);
        assert_eq!(added.iter().map(|change| change.field.as_str()).collect::<Vec<_>>(), ["schematic"]);
    }

    #[test]
    fn before_a_golden_exists_a_target_may_be_corrected() {
        let small = http(URL, json!({ "storage": { "targets": [{ "size": "1Gi" }] } }));
        let large = http(URL, json!({ "storage": { "targets": [{ "size": "6Gi" }] } }));
        assert_eq!(frozen_changes(&small, &large, |_| false), []);
    }

    /// A further target that was never made, with a class that does not exist say, is no golden: it may go again.
    #[test]
    fn r4_a_target_is_frozen_by_its_own_golden_and_not_by_a_siblings() {
        let with = |targets: Value| http(URL, json!({ "storage": { "targets": targets } }));
        let old = with(json!([{}, { "storageClassName": "lokal" }]));
        let is_made = |class: &str| class.is_empty();
        assert_eq!(frozen_changes(&old, &with(json!([{}, { "storageClassName": "local" }])), is_made), []);
        assert_eq!(frozen_changes(&old, &with(json!([{}])), is_made), []);
        let changes = frozen_changes(&old, &with(json!([{ "storageClassName": "other" }])), is_made);
        assert_eq!(changes.iter().map(|change| change.field.as_str()).collect::<Vec<_>>(), ["storage.targets (the default class)"]);
    }

    /// An attempt that made nothing leaves a record: the target may be corrected, and is taken out as a made one is.
    #[test]
    fn r4_a_target_whose_attempts_made_nothing_may_be_corrected() {
        let with = |targets: Value| http(URL, json!({ "storage": { "targets": targets } }));
        let old = with(json!([{ "storageClassName": "a" }]));
        let changes = |new: Value| frozen_changes(&old, &with(new), |_| super::Freeze::Begun).len();
        assert_eq!(changes(json!([{ "storageClassName": "a", "volumeMode": "Block", "size": "6Gi" }])), 0);
        assert_eq!(changes(json!([{ "storageClassName": "b" }])), 1);
    }

    /// Taken out, a target's golden goes through the fence; exchanged, it was edited.
    #[rstest]
    #[case::taken_out(json!([{}, { "storageClassName": "a" }]), json!([{}]), &[])]
    #[case::the_first(json!([{ "size": "6Gi" }, { "storageClassName": "a" }]), json!([{ "storageClassName": "a" }]), &[])]
    #[case::the_rest_as_it_was(json!([{}, { "storageClassName": "a" }]), json!(null), &[])]
    #[case::all_but_one(json!([{}, { "storageClassName": "a" }, { "storageClassName": "b" }]), json!([{ "storageClassName": "b" }]), &[])]
    #[case::exchanged(json!([{}, { "storageClassName": "a" }]), json!([{}, { "storageClassName": "b" }]), &["storage.targets (a)"])]
    #[case::the_default_spelled_out(json!([{}]), json!([{ "storageClassName": "a" }]), &["storage.targets (the default class)"])]
    #[case::no_more_classes(json!([{ "storageClassName": "a" }]), json!(null), &["storage.targets (a)"])]
    #[case::and_another_edited(json!([{}, { "storageClassName": "a" }]), json!([{ "size": "7Gi" }]), &["storage.targets (the default class)"])]
    fn r4_a_made_target_may_be_taken_out_and_not_exchanged(#[case] old: Value, #[case] new: Value, #[case] fields: &[&str]) {
        let with = |targets: Value| match targets {
            Value::Null => http(URL, json!({})),
            targets => http(URL, json!({ "storage": { "targets": targets } })),
        };
        let changes = frozen_changes(&with(old), &with(new), |_| true);
        assert_eq!(changes.iter().map(|change| change.field.as_str()).collect::<Vec<_>>(), fields);
    }
}
