//! Keeping a TLS Secret and what is served in step: the leader writes it, everybody reads it.

use super::{Action, Error, Observed, Offer, Profile, Resolver, Served, Told, decide, issue, told};
use crate::run::{client, lease::Leadership};
use futures::{Stream, StreamExt as _};
use k8s_openapi::{api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api,
    api::PostParams,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt as _, watcher},
};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Brings the Secret `name` to where it needs nothing, and gives what to serve.
///
/// Writes only over what was read (resourceVersion) and only what is not there (create), so that of two who try at once one
/// reads what the other wrote.
///
/// # Errors
/// Those of [`Served::load`], [`Error::Issue`], [`Error::Api`].
pub async fn keep(api: &Api<Secret>, name: &str, profile: &Profile, now: Timestamp, hold: bool) -> Result<(Served, Vec<Action>), Error> {
    let mut done = Vec::new();
    // A change of the CA takes at most three steps; more rounds only after conflicts.
    for _ in 0..8 {
        let secret = api.get_opt(name).await.map_err(|error| Error::api(name, error))?;
        let observed = secret.as_ref().map(Observed::of);
        let action = decide(observed.as_ref(), profile, now, hold);
        if let (Action::Keep | Action::Use, Some(secret)) = (&action, &secret) {
            return Ok((Served::load(name, secret)?, done));
        }
        let exists = secret.is_some();
        let wanted = issue::apply(&action, name, secret, observed.as_ref(), profile, now)?;
        let written = match exists {
            true => api.replace(name, &PostParams::default(), &wanted).await,
            false => api.create(&PostParams::default(), &wanted).await,
        };
        match written {
            Ok(_) => done.push(action),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(Error::api(name, error)),
        }
    }
    Err(Error::Issue(format!("Secret {name} is written by somebody else again and again")))
}

/// Keeps what a [`Resolver`] serves in step with a Secret.
#[derive(Debug)]
pub struct Keeper {
    /// The namespace of the Secret.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What certificate is wanted.
    pub profile: Profile,
    /// What is served.
    pub resolver: Arc<Resolver>,
    /// How often to look besides what the watch of the Secret tells; a minute is soon enough for certificates that are renewed weeks ahead.
    pub interval: Duration,
    /// How long a CA is published before a certificate by it is served: [`super::SETTLE`].
    pub settle: Duration,
    /// The webhook configurations by which callers know whom to trust; without a name, or where they cannot be seen, the clock alone counts.
    pub configurations: Option<String>,
}

/// How often callers are looked at while they are not told of a CA.
const UNTOLD: Duration = Duration::from_secs(5);

impl Keeper {
    /// Looks at the Secret until `stop`. Who leads issues and renews it; who does not, or has no [`Leadership`] (the
    /// admission role), only reads it. `hold` is asked before a change of the CA, see [`decide`].
    ///
    /// What cannot be read or is broken leaves the last good certificate in place.
    ///
    /// # Errors
    /// When `config` makes no client.
    pub async fn run(
        self,
        config: &kube::Config,
        leadership: Option<Leadership>,
        hold: impl Fn() -> bool,
        stop: CancellationToken,
    ) -> kube::Result<()> {
        let reader = client::reader(config)?;
        let headers: Api<PartialObjectMeta<Secret>> = Api::namespaced(reader.clone(), &self.namespace);
        let client = reader.clone();
        let reader: Api<Secret> = Api::namespaced(reader, &self.namespace);
        let mut claims = leadership.as_ref().map(Leadership::watch);
        // Only a wake-up, so that the content of no Secret but this one is ever asked for, and that only when it is used.
        let named = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let mut written = pin!(watcher(headers, named).default_backoff());
        let mut trouble = None;
        while !stop.is_cancelled() {
            let claim = leadership.as_ref().and_then(Leadership::claim);
            let look = async {
                match &claim {
                    Some(claim) => {
                        let writer = client::writer(config, claim, client::READ_TIMEOUT).map_err(|error| Error::api(&self.name, error))?;
                        let api = Api::namespaced(writer, &self.namespace);
                        keep(&api, &self.name, &self.profile, Timestamp::now(), hold()).await
                    }
                    None => match reader.get_opt(&self.name).await.map_err(|error| Error::api(&self.name, error))? {
                        Some(secret) => Served::load(&self.name, &secret).map(|served| (served, vec![])),
                        None => Err(Error::Missing { name: self.name.clone() }),
                    },
                }
            };
            let outcome = tokio::select! {
                () = stop.cancelled() => break,
                outcome = tokio::time::timeout(Duration::from_secs(30), look) => outcome,
            };
            let outcome = outcome.unwrap_or_else(|_| Err(Error::Issue("the API server did not answer within 30 s".to_owned())));
            let ask = async {
                match (&outcome, &self.configurations) {
                    (Ok((found, _)), Some(name)) if self.resolver.asks_callers(found) => told::told(&client, name, found).await,
                    _ => Told::Nothing,
                }
            };
            let callers = tokio::select! {
                () = stop.cancelled() => break,
                callers = ask => callers,
            };
            let pause = self.take(outcome, callers, &mut trouble).min(self.interval);
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
                () = changed(&mut claims) => {}
                () = told(&mut written) => {}
            }
        }
        Ok(())
    }

    /// Takes what was found and tells what went wrong, once; says when to look again at the latest.
    fn take(&self, outcome: Result<(Served, Vec<Action>), Error>, told: Told, trouble: &mut Option<String>) -> Duration {
        let now = Timestamp::now();
        let mut pause = self.interval;
        let text = match outcome {
            Ok((served, actions)) => {
                for action in actions {
                    tracing::info!(secret = self.name, ?action, "wrote the certificate's Secret");
                }
                let refused = served.trouble(&self.profile.names, now).map(|trouble| format!("Secret {}: {trouble}", self.name));
                let not_after = served.not_after();
                let mut untold = None;
                match self.resolver.offer(served, told, self.settle) {
                    Offer::Known => {}
                    Offer::Untold(_) => {
                        pause = UNTOLD;
                        untold = Some(format!(
                            "Secret {}: its certificate is by another CA, which the webhook configurations do not name yet; the former one is \
                             served until the leader of the controller has filled it in, or until it ends",
                            self.name
                        ));
                    }
                    Offer::Served => {
                        tracing::info!(secret = self.name, %not_after, "serves another certificate from the next connection on")
                    }
                    Offer::Waits(left) => {
                        tracing::info!(secret = self.name, ?left, "a certificate by another CA is served when its CA has been published");
                        pause = left;
                    }
                }
                refused.or(untold)
            }
            Err(Error::Api { source, .. }) if client::is_lost(&source) => return self.soon(pause),
            Err(error) => Some(error.to_string()),
        };
        if let Some(text) = &text
            && *trouble != Some(text.clone())
        {
            tracing::warn!("{text}");
        }
        *trouble = text;
        self.soon(pause)
    }

    /// While there is nothing to serve, every second counts for those who wait at the door.
    fn soon(&self, pause: Duration) -> Duration {
        if self.resolver.served().is_none() { pause.min(Duration::from_secs(1)) } else { pause }
    }
}

/// Completes when the Secret was written; a watch that fails begins again by itself, and nobody waits for it.
async fn told(written: &mut (impl Stream<Item = Result<watcher::Event<PartialObjectMeta<Secret>>, watcher::Error>> + Unpin)) {
    while let Some(event) = written.next().await {
        if matches!(event, Ok(watcher::Event::Apply(_) | watcher::Event::InitApply(_) | watcher::Event::Delete(_))) {
            return;
        }
    }
    std::future::pending().await
}

/// Completes when who leads has changed; never where that is not known.
async fn changed(claims: &mut Option<tokio::sync::watch::Receiver<Option<crate::run::lease::Claim>>>) {
    if let Some(receiver) = claims {
        if receiver.changed().await.is_ok() {
            return;
        }
        // The elector is gone: the process is ending.
        *claims = None;
    }
    std::future::pending().await
}
