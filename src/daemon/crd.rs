//! Our own CRD in the cluster: watched by every replica, brought forward by the leader.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::ClusterResourceScope,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::tried::Waiting;
use crate::{
    api::{GoldenImage, Upgrade, crd, missing_fields, upgrade},
    world::{Pulse, Selection, Sink, Store, Watch, WatchSettings, WatchState, feed},
};

/// The CRD's name.
pub const NAME: &str = "goldenimages.cozystack.io";

/// Its kind.
const KIND: &str = "CustomResourceDefinition";

/// Who owns what we write of it, in server-side apply.
const MANAGER: &str = "golden-catalog/crd";

/// What the watch shows of the CRD: `None` before it has shown anything.
pub type Seen = watch::Receiver<Option<Live>>;

/// The CRD in the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Live {
    /// Fields of ours that it has not; a missing CRD has none of them.
    pub missing: Vec<String>,
    /// What is to be done about it; `None` where there is no CRD.
    pub upgrade: Option<Upgrade>,
    /// How often this process saw one that it could not work with. Whoever looks seldom sees by it what came and went in between.
    pub losses: u64,
}

impl Live {
    fn of(live: Option<&Value>) -> Self {
        match live {
            None => Self { missing: Vec::new(), upgrade: None, losses: 0 },
            Some(live) => Self { missing: missing_fields(live, &crd()), upgrade: Some(upgrade(live, &crd())), losses: 0 },
        }
    }

    /// Whether this release can work with it.
    ///
    /// # Errors
    /// What is missing, by name, for the readiness probe and the log.
    pub fn usable(&self) -> Result<(), String> {
        match &self.upgrade {
            None => Err(format!("the CRD {NAME} is not installed")),
            Some(_) if self.missing.is_empty() => Ok(()),
            Some(_) => Err(format!("the CRD {NAME} lacks {}", self.missing.join(", "))),
        }
    }

    /// Whether a replica is ready with it. An older CRD is brought forward by whoever of this release leads, and a rollout lets nobody
    /// lead before it is ready: to wait for the CRD would be to wait for itself. `is_upgraded`: whether a leader does that.
    ///
    /// # Errors
    /// As for [`Self::usable`].
    pub fn ready(&self, is_upgraded: bool) -> Result<(), String> {
        match self.upgrade {
            Some(Upgrade::Forward) if is_upgraded => Ok(()),
            _ => self.usable(),
        }
    }
}

/// The CRD as the API server sends it. Untyped: what this release does not know of CRDs is compared too.
#[derive(Debug, Clone, Deserialize)]
struct Definition {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

impl Resource for Definition {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "apiextensions.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "customresourcedefinitions".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Tells what the watch shows of the CRD.
struct Teller {
    seen: watch::Sender<Option<Live>>,
    /// While a list is under way: what it holds so far. Only its end says that there is no CRD.
    listed: Option<Option<Live>>,
    /// It is there and cannot be read: nothing new is known of it.
    is_odd: bool,
}

impl Teller {
    const fn new(seen: watch::Sender<Option<Live>>) -> Self {
        Self { seen, listed: None, is_odd: false }
    }

    fn tell(&self, mut live: Live) {
        self.seen.send_if_modified(|known| {
            let (losses, was_usable) = known.as_ref().map_or((0, true), |known| (known.losses, known.usable().is_ok()));
            live.losses = losses + u64::from(was_usable && live.usable().is_err());
            let changed = known.as_ref() != Some(&live);
            *known = Some(live);
            changed
        });
    }
}

impl Sink<Definition> for Teller {
    fn begin(&mut self) {
        (self.listed, self.is_odd) = (Some(None), false);
    }

    fn apply(&mut self, object: Definition) {
        self.is_odd = false;
        let live = Live::of(Some(&json!({ "metadata": object.metadata, "spec": object.spec })));
        match &mut self.listed {
            Some(listed) => *listed = Some(live),
            None => self.tell(live),
        }
    }

    fn delete(&mut self, _: Option<&str>, _: &str) {
        self.tell(Live::of(None));
    }

    fn odd(&mut self, _: Option<&str>, _: &str, _: &str) {
        self.is_odd = true;
    }

    fn synced(&mut self) {
        let listed = self.listed.take().flatten();
        if listed.is_some() || !self.is_odd {
            self.tell(listed.unwrap_or_else(|| Live::of(None)));
        }
    }

    /// An API server that knows no CRDs at this moment says nothing about ours.
    fn not_installed(&mut self) {
        self.listed = None;
    }
}

/// The watch of the CRD, which tells `seen` what it is like. It is as every other: with a backoff and an age of its own, and part of
/// liveness. By name, so that the right to read this one definition is enough.
pub fn watch(client: &Client, settings: WatchSettings, seen: watch::Sender<Option<Live>>) -> Watch {
    let pulse: Pulse = Arc::new(WatchState::new(KIND, settings.limit, Instant::now()));
    let selection = Selection { fields: Some(format!("metadata.name={NAME}")), ..Selection::default() };
    let (client, state, mut teller) = (client.clone(), Arc::clone(&pulse), Teller::new(seen));
    Watch { pulse, run: Box::pin(async move { feed(client, selection, settings, &state, &mut teller).await }) }
}

/// Waits until this release can work with the CRD. Gives how often it could not until then.
pub async fn usable(seen: &mut Seen) -> u64 {
    loop {
        if let Some(live) = seen.borrow_and_update().as_ref().filter(|live| live.usable().is_ok()) {
            return live.losses;
        }
        if seen.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Waits until this release cannot work with the CRD any more: somebody put an older one in its place, or took it away. Gives why.
/// `losses` is how often it could not before: one that came and went between two looks left its traces too.
pub async fn lost(mut seen: Seen, losses: u64) -> String {
    loop {
        let why = seen.borrow_and_update().as_ref().and_then(|live| {
            let in_between = || (live.losses > losses).then(|| format!("the CRD {NAME} lacked fields for a moment"));
            live.usable().err().or_else(in_between)
        });
        if let Some(why) = why {
            return why;
        }
        if seen.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// How long the API server is given to change over to a CRD that was just written, and to end the watches of the former one.
const CHANGE_OVER: Duration = Duration::from_secs(1);

/// Waits until what is known of the images is what the API server gives now. While the CRD lacked fields it left them out of
/// everything it sent, and what it does not change it does not send again: from an image without its targets or its digest nothing
/// may be decided. A replica cannot know for sure under which CRD it read what it knows, so each term begins with this; `lacked` is
/// whether the CRD was seen to lack fields since it was last done.
pub async fn read_anew(client: &Client, images: &Store<GoldenImage>, watch: Option<&WatchState>, lacked: bool) {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<GoldenImage>(&()));
    let mut waiting = Waiting::begin(Instant::now());
    for round in 0.. {
        // Once without a wait: mostly nothing is amiss, and a new leader is waited for.
        if lacked || round > 0 {
            tokio::time::sleep(CHANGE_OVER).await;
        }
        if let Some(watch) = watch.filter(|_| if lacked { round % 5 == 0 } else { round % 5 == 1 }) {
            watch.list_anew();
        }
        let why = match api.list(&ListParams::default()).await {
            Ok(live) => match live.items.into_iter().find_map(|image| unknown(images, image)) {
                Some(name) => format!("the GoldenImage {name} is not known here as the API server has it"),
                None => return,
            },
            Err(error) => format!("the GoldenImages cannot be listed: {}", crate::run::api_error(&error)),
        };
        waiting.tell(&why);
    }
}

/// The name of an image that is not known as it is. One that cannot be read keeps no other waiting, and nothing is decided about it.
fn unknown(images: &Store<GoldenImage>, live: DynamicObject) -> Option<String> {
    let name = live.name_any();
    let known = images.get("", &name);
    let is_known = match serde_json::to_value(live).and_then(serde_json::from_value::<GoldenImage>) {
        Ok(live) => known.is_some_and(|known| {
            known.resource_version() == live.resource_version() && known.spec == live.spec && known.status == live.status
        }),
        Err(_) => true,
    };
    (!is_known).then_some(name)
}

/// Brings the CRD forward while we lead, for as long as `stop` is not cancelled. `writer` refuses when the Lease has run out.
pub async fn keep(writer: Client, mut seen: Seen, stop: CancellationToken) {
    loop {
        let live = seen.borrow_and_update().clone();
        let again = match live.and_then(|live| live.upgrade) {
            Some(Upgrade::Forward) => match apply(&writer).await {
                Ok(()) => {
                    tracing::info!(version = env!("CARGO_PKG_VERSION"), "the CRD was brought forward");
                    false
                }
                Err(error) => {
                    tracing::warn!(error = crate::run::api_error(&error), "the CRD cannot be brought forward; tried again");
                    true
                }
            },
            Some(Upgrade::Newer(why)) => {
                tracing::info!(why, "the CRD is newer than this release, and stays");
                false
            }
            Some(Upgrade::Same) | None => false,
        };
        tokio::select! {
            () = stop.cancelled() => return,
            changed = seen.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(Duration::from_secs(30)), if again => {},
        }
    }
}

/// Forced, because Helm, which installed it, owns the same fields. What others added stays: only what is ours is written.
async fn apply(writer: &Client) -> Result<(), kube::Error> {
    let params = PatchParams::apply(MANAGER).force();
    Api::<Definition>::all(writer.clone()).patch(NAME, &params, &Patch::Apply(&crd())).await.map(drop)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use serde_json::{Value, json};
    use tokio::sync::watch;

    use super::{Definition, Live, NAME, Sink, Teller};
    use crate::api::{Upgrade, crd};

    /// Our CRD as the API server sends it, or an older one.
    fn definition(without: Option<&str>) -> Definition {
        let mut crd = crd();
        if let Some(field) = without {
            let properties = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
            crd.pointer_mut(properties).and_then(Value::as_object_mut).expect("there").remove(field).expect("there");
        }
        crd["metadata"]["resourceVersion"] = json!("7");
        crd["status"] = json!({ "acceptedNames": {} });
        serde_json::from_value(crd).expect("a definition")
    }

    fn odd(teller: &mut Teller) {
        Sink::<Definition>::odd(teller, None, NAME, "no such field");
    }

    #[test]
    fn the_end_of_a_list_and_nothing_else_says_that_there_is_no_crd() {
        let (sender, seen) = watch::channel(None);
        let known = || seen.borrow().clone();
        let told = || known().map(|live: Live| live.usable());
        let mut teller = Teller::new(sender);
        teller.begin();
        teller.not_installed();
        odd(&mut teller);
        teller.synced();
        assert_eq!(told(), None, "what cannot be read is not known, and not gone");
        teller.begin();
        assert_eq!(told(), None, "a list is under way");
        teller.synced();
        assert_eq!(told(), Some(Err(format!("the CRD {NAME} is not installed"))));

        teller.begin();
        teller.apply(definition(None));
        assert!(told().is_some_and(|told| told.is_err()), "a list is under way");
        teller.synced();
        assert_eq!((told(), known().and_then(|live| live.upgrade)), (Some(Ok(())), Some(Upgrade::Same)));
        // During a term: an older one by hand, one that cannot be read, ours again, and none.
        teller.apply(definition(Some("suspend")));
        let ready = |is_upgraded| known().map(|live: Live| live.ready(is_upgraded).is_ok());
        assert_eq!((ready(false), ready(true)), (Some(false), Some(true)), "who waits for a leader of its own release waits for itself");
        assert_eq!(told(), Some(Err(format!("the CRD {NAME} lacks spec.suspend"))));
        odd(&mut teller);
        assert!(told().is_some_and(|told| told.is_err()));
        teller.apply(definition(None));
        assert_eq!(told(), Some(Ok(())));
        teller.begin();
        odd(&mut teller);
        teller.synced();
        assert_eq!(told(), Some(Ok(())));
        teller.delete(None, NAME);
        assert!(told().is_some_and(|told| told.is_err()));
    }

    /// Whoever looks seldom, as one that leads only later, sees what came and went in between.
    #[test]
    fn what_was_lacking_in_between_is_counted() {
        for (first, told, losses) in [
            (None, vec![None, None], 0),
            (Some("suspend"), vec![None], 1),
            (None, vec![Some("suspend"), Some("retire"), None], 1),
            (None, vec![Some("suspend"), None, Some("suspend"), None], 2),
        ] {
            let (sender, mut seen) = watch::channel(None);
            let mut teller = Teller::new(sender);
            teller.begin();
            teller.apply(definition(first));
            teller.synced();
            told.iter().for_each(|without| teller.apply(definition(*without)));
            assert_eq!(super::usable(&mut seen).now_or_never(), Some(losses), "{first:?} {told:?}");
        }
    }

    #[test]
    fn nobody_is_woken_by_what_is_as_before() {
        let (sender, mut seen) = watch::channel(None);
        let mut teller = Teller::new(sender);
        for is_news in [true, false] {
            teller.apply(definition(None));
            assert_eq!(seen.has_changed().expect("open"), is_news);
            seen.mark_unchanged();
        }
    }

    #[tokio::test]
    async fn a_crd_that_loses_fields_ends_what_needs_them() {
        let (sender, seen) = watch::channel(Some(Live::of(Some(&crd()))));
        let waits = tokio::spawn(super::lost(seen.clone(), 0));
        let mut teller = Teller::new(sender);
        teller.apply(definition(Some("retire")));
        assert_eq!(waits.await.expect("told"), format!("the CRD {NAME} lacks spec.retire"));
        // Whoever did not look meanwhile learns of it all the same; whoever began after it is not told of it.
        teller.apply(definition(None));
        assert_eq!(super::lost(seen.clone(), 0).now_or_never(), Some(format!("the CRD {NAME} lacked fields for a moment")));
        assert_eq!(super::lost(seen, 1).now_or_never(), None);
    }
}
