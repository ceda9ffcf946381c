//! What keeps the fence from being kept as it should: told on the golden's claim, or its DataVolume where that has none, by an Event, and on its image by whoever makes its status.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::rules::{Answer, refusal};

/// How often in a row something fails before it is told that is not a plain refusal: an API server that restarts is nobody's trouble.
const PATIENCE: u32 = 3;

/// The trouble with one golden.
#[derive(Debug, PartialEq, Eq)]
struct Trouble {
    /// The image that tells it.
    image: Option<String>,
    text: String,
}

/// The trouble with each golden, by its name; written by the leader's loop alone.
#[derive(Debug, Default)]
pub struct Troubles(RwLock<BTreeMap<String, Trouble>>);

impl Troubles {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Trouble>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Trouble>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what the trouble with a golden is, or that there is none. Gives whether that is news.
    pub(super) fn set(&self, golden: &str, image: Option<&str>, trouble: Option<&str>) -> bool {
        if self.read().get(golden).map(|known| known.text.as_str()) == trouble {
            return false;
        }
        let now = trouble.map(|text| Trouble { image: image.map(str::to_owned), text: text.to_owned() });
        match now {
            Some(now) => drop(self.write().insert(golden.to_owned(), now)),
            None => drop(self.write().remove(golden)),
        }
        true
    }

    /// Forgets all goldens but these. Gives the images that have something else to tell now.
    pub(super) fn keep(&self, goldens: &BTreeSet<String>) -> Vec<String> {
        if self.read().keys().all(|golden| goldens.contains(golden)) {
            return Vec::new();
        }
        self.write().extract_if(.., |golden, _| !goldens.contains(golden)).filter_map(|(_, trouble)| trouble.image).collect()
    }

    /// The trouble with any of these goldens, in one text.
    pub fn of<'a>(&self, goldens: impl IntoIterator<Item = &'a str>) -> Option<String> {
        let troubles = self.read();
        let goldens: BTreeSet<&str> = goldens.into_iter().collect();
        let texts: Vec<&str> = goldens.into_iter().filter_map(|golden| Some(troubles.get(golden)?.text.as_str())).collect();
        (!texts.is_empty()).then(|| texts.join(" "))
    }
}

/// What is to be told of a write that failed `failures` times in a row: a refusal at once, anything else when it stays.
pub(super) fn of_write(what: &str, error: &kube::Error, failures: u32) -> Option<String> {
    let told = match error {
        kube::Error::Api(status) => refusal(what, Answer { code: status.code, reason: &status.reason, message: &status.message }),
        _ => None,
    };
    let stays = || format!("The API server does not do what it is asked for ({what}): {}.", error_text(error));
    told.map(|(_, text)| text).or_else(|| (failures >= PATIENCE).then(stays))
}

/// The same of the question who needs a golden, asked of the API server itself.
pub(super) fn of_question(why: &str, failures: u32) -> Option<String> {
    let text = || {
        format!(
            "Who needs it cannot be asked of the API server itself, and nothing goes before that is known: {}.",
            crate::model::redact(why).trim_end_matches('.')
        )
    };
    (failures >= PATIENCE).then(text)
}

/// The same of an object that is there and cannot be read.
pub(super) fn of_odd(odd: &str) -> String {
    format!("Nothing is done about the golden while not all of it is known: {}.", odd.trim_end_matches('.'))
}

fn error_text(error: &kube::Error) -> String {
    crate::model::redact(&crate::run::api_error(error)).trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answer(code: u16, reason: &str, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status { code, reason: reason.into(), message: message.into(), ..Status::default() }))
    }

    #[test]
    fn a_refusal_is_told_at_once_and_what_may_pass_when_it_stays() {
        let policy = answer(422, "Invalid", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ask storage first");
        let told = of_write("the marks on DataVolume c/g", &policy, 1).expect("told");
        assert!(told.contains("the marks on DataVolume c/g") && told.contains("ValidatingAdmissionPolicy 'p'"), "{told}");
        let busy = answer(503, "ServiceUnavailable", "etcd is away");
        assert_eq!([1, 2].map(|failures| of_write("the marks", &busy, failures)), [None, None]);
        let told = of_write("the marks", &busy, 3).expect("it stays");
        assert!(told.contains("the marks") && told.contains("etcd is away"), "{told}");
        assert_eq!(of_question("VirtualMachine objects cannot be listed: no", 2), None);
        assert!(of_question("VirtualMachine objects cannot be listed: no", 3).is_some_and(|told| told.ends_with("listed: no.")));
    }

    #[test]
    fn the_trouble_of_an_image_is_that_of_its_goldens_and_only_news_is_news() {
        let troubles = Troubles::default();
        let set = |golden, trouble| troubles.set(golden, Some("image"), trouble);
        assert_eq!([set("a", None), set("a", Some("x")), set("a", Some("x"))], [false, true, false]);
        assert!(set("b", Some("y")) && set("c", Some("z")));
        assert_eq!(troubles.of(["b", "a", "a", "other"]).as_deref(), Some("x y"));
        assert!(set("a", None));
        assert_eq!(troubles.keep(&["c".to_owned()].into()), ["image"]);
        assert_eq!(troubles.keep(&["c".to_owned()].into()), [""; 0]);
        assert_eq!((troubles.of(["a", "b"]), troubles.of(["c"]).as_deref()), (None, Some("z")));
    }
}
