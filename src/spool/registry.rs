use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{Address, SpoolKey};
use crate::model::{Digest, GoldenName};

/// One golden's right to one disk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The UID of the GoldenImage.
    pub uid: String,
    /// The golden.
    pub golden: GoldenName,
    /// The disk that it is to get.
    pub disk: Digest,
}

/// Which paths the server knows, who has used them, and how. The controller drives it; clones are the same registry.
///
/// It is memory only: a new leader grants or retires every golden once and then says [`Registry::all_known`].
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    key: SpoolKey,
    table: Mutex<Table>,
    changes: broadcast::Sender<Change>,
    traffic: Traffic,
}

#[derive(Default)]
struct Table {
    slots: HashMap<String, Slot>,
    all_known: bool,
    handshakes: VecDeque<HandshakeFailure>,
}

enum Slot {
    Live(Arc<Entry>),
    Gone,
}

/// Something happened that the controller may want to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A request for this grant's disk began, ended, waits for the disk or was refused: see [`Registry::facts`].
    Request(Grant),
    /// A TLS handshake failed: see [`Registry::handshake_failures`].
    Handshake,
}

/// What is known about the requests for one grant's disk, since the grant was made in this process (R10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Requests with the right token.
    pub requests: u64,
    /// Of these, the ones being answered now.
    pub open_requests: u64,
    /// Of these, the ones that wait for the disk to be fetched again.
    pub waiting: u64,
    /// When the first and the last one came.
    pub first_request: Option<SystemTime>,
    /// When the last one came.
    pub last_request: Option<SystemTime>,
    /// Bytes of the disk handed to connections; what a client that closes early left unread may be among them.
    pub bytes_sent: u64,
    /// `GET` requests whose whole disk was handed to the connection.
    pub full_downloads: u64,
    /// When the last of those was through.
    pub last_download: Option<SystemTime>,
    /// Requests without the right token.
    pub wrong_tokens: u64,
    /// When the last of those came, and from where.
    pub last_wrong_token: Option<(SystemTime, IpAddr)>,
}

/// Failed TLS handshakes of one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeFailure {
    /// Who tried.
    pub peer: IpAddr,
    /// When it last failed.
    pub time: SystemTime,
    /// How often it failed.
    pub count: u64,
    /// Whether the peer said that it does not accept our certificate. Otherwise it went away, was too slow, or spoke
    /// something else: health checks and port scans do.
    pub certificate_refused: bool,
    /// The last failure, in words.
    pub message: String,
}

/// What the server did since it began, for metrics.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Connections open now.
    pub connections: AtomicU64,
    /// Connections closed at once because too many were open.
    pub connections_refused: AtomicU64,
    /// Bytes of disks handed to connections.
    pub bytes_sent: AtomicU64,
}

pub(super) struct Entry {
    pub(super) grant: Grant,
    address: Address,
    facts: Mutex<Facts>,
    bytes_sent: AtomicU64,
    /// Cancelled when the grant is retired or revoked.
    pub(super) ended: CancellationToken,
}

/// What a path leads to.
pub(super) enum Found {
    Unknown,
    /// Nothing yet: the controller has not gone through all goldens.
    NotYet,
    Gone,
    Live(Arc<Entry>),
}

impl Registry {
    /// How many peers' handshake failures are remembered.
    const HANDSHAKES: usize = 64;
    /// How many changes a subscriber may lag behind.
    const CHANGES: usize = 256;

    /// An empty registry whose addresses derive from `key`.
    pub fn new(key: SpoolKey) -> Self {
        let (changes, _) = broadcast::channel(Self::CHANGES);
        Self(Arc::new(Inner { key, table: Mutex::default(), changes, traffic: Traffic::default() }))
    }

    /// Lets `grant` have its disk, and gives the address to be written into the DataVolume. Granting again changes nothing.
    pub fn grant(&self, grant: &Grant) -> Address {
        let address = self.0.key.address(grant);
        let mut table = self.table();
        if !matches!(table.slots.get(address.path()), Some(Slot::Live(_))) {
            let entry = Entry {
                grant: grant.clone(),
                address: address.clone(),
                facts: Mutex::default(),
                bytes_sent: AtomicU64::new(0),
                ended: CancellationToken::new(),
            };
            table.slots.insert(address.path().to_owned(), Slot::Live(Arc::new(entry)));
        }
        address
    }

    /// The path at which a grant is, or would be, served.
    pub fn path(&self, grant: &Grant) -> String {
        self.0.key.address(grant).path().to_owned()
    }

    /// Answers 410 from now on: the golden has its disk, and nothing may silently import it again.
    pub fn retire(&self, grant: &Grant) {
        let address = self.0.key.address(grant);
        let old = self.table().slots.insert(address.path().to_owned(), Slot::Gone);
        end(old);
    }

    /// Forgets the grant: its path is unknown from now on.
    pub fn revoke(&self, grant: &Grant) {
        let old = self.table().slots.remove(self.0.key.address(grant).path());
        end(old);
    }

    /// Says that every golden has been granted or retired once. Until then an unknown path is answered with 503, not 404,
    /// so that an importer outlives a change of the leader.
    pub fn all_known(&self) {
        self.table().all_known = true;
    }

    /// What is known about a live grant's requests.
    pub fn facts(&self, grant: &Grant) -> Option<Facts> {
        match self.table().slots.get(self.0.key.address(grant).path())? {
            Slot::Live(entry) => Some(entry.facts()),
            Slot::Gone => None,
        }
    }

    /// The failed TLS handshakes of the peers that failed last, newest last.
    pub fn handshake_failures(&self) -> Vec<HandshakeFailure> {
        self.table().handshakes.iter().cloned().collect()
    }

    /// What happens from now on. A subscriber that lags looks at everything again.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.0.changes.subscribe()
    }

    /// Counters for metrics.
    pub fn traffic(&self) -> &Traffic {
        &self.0.traffic
    }

    pub(super) fn find(&self, path: &str) -> Found {
        let table = self.table();
        match table.slots.get(path) {
            Some(Slot::Live(entry)) => Found::Live(Arc::clone(entry)),
            Some(Slot::Gone) => Found::Gone,
            None if table.all_known => Found::Unknown,
            None => Found::NotYet,
        }
    }

    pub(super) fn handshake_failed(&self, peer: IpAddr, certificate_refused: bool, message: String) {
        let mut table = self.table();
        let former = table.handshakes.iter().position(|failure| failure.peer == peer).and_then(|at| table.handshakes.remove(at));
        let count = former.map_or(0, |failure| failure.count) + 1;
        table.handshakes.push_back(HandshakeFailure { peer, time: SystemTime::now(), count, certificate_refused, message });
        if table.handshakes.len() > Self::HANDSHAKES {
            table.handshakes.pop_front();
        }
        drop(table);
        let _ = self.0.changes.send(Change::Handshake);
    }

    /// Notes a request with a wrong token.
    pub(super) fn refused(&self, entry: &Entry, peer: IpAddr) {
        entry.note(|facts| {
            facts.wrong_tokens += 1;
            facts.last_wrong_token = Some((SystemTime::now(), peer));
        });
        let _ = self.0.changes.send(Change::Request(entry.grant.clone()));
    }

    /// Notes a request with the right token, for as long as what is given lives.
    pub(super) fn begin(&self, entry: Arc<Entry>) -> OpenRequest {
        entry.note(|facts| {
            let now = SystemTime::now();
            facts.requests += 1;
            facts.open_requests += 1;
            facts.first_request.get_or_insert(now);
            facts.last_request = Some(now);
        });
        let request = OpenRequest { registry: self.clone(), entry, waiting: false };
        request.tell();
        request
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(slot: Option<Slot>) {
    if let Some(Slot::Live(entry)) = slot {
        entry.ended.cancel();
    }
}

impl Entry {
    /// Whether a request with this `Authorization` header may have the disk.
    pub(super) fn accepts(&self, authorization: &[u8]) -> bool {
        self.address.accepts(authorization)
    }

    fn facts(&self) -> Facts {
        let facts = *self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        Facts { bytes_sent: self.bytes_sent.load(Ordering::Relaxed), ..facts }
    }

    fn note(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A request being answered.
pub(super) struct OpenRequest {
    registry: Registry,
    pub(super) entry: Arc<Entry>,
    waiting: bool,
}

impl OpenRequest {
    /// Notes that the request waits for its disk, or no longer does.
    pub(super) fn set_waiting(&mut self, waiting: bool) {
        if self.waiting != waiting {
            self.waiting = waiting;
            self.entry.note(|facts| if waiting { facts.waiting += 1 } else { facts.waiting -= 1 });
            self.tell();
        }
    }

    /// Notes bytes handed to the connection.
    pub(super) fn sent(&self, bytes: u64) {
        self.entry.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
        self.registry.0.traffic.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that the whole disk was handed to the connection.
    pub(super) fn sent_all(&self) {
        self.entry.note(|facts| {
            facts.full_downloads += 1;
            facts.last_download = Some(SystemTime::now());
        });
    }

    fn tell(&self) {
        let _ = self.registry.0.changes.send(Change::Request(self.entry.grant.clone()));
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.set_waiting(false);
        self.entry.note(|facts| facts.open_requests -= 1);
        self.tell();
    }
}
