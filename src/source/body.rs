//! A response body as a bounded stream that notices when it stalls, trickles, breaks, ends early or goes on too long.

use std::{io, time::Duration};

use bytes::Bytes;
use futures::{FutureExt as _, Stream};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::AsyncReadExt as _,
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{
    connect::Io,
    error::{At, Fault, SourceError},
    settings::{Caps, Deadlines},
};

/// The bytes of one response, in chunks of at most [`Body::LARGEST_CHUNK`]. Dropping it closes the connection.
pub struct Body {
    incoming: Incoming,
    driver: Driver,
    at: At,
    idle: Duration,
    idle_progress: u64,
    /// Bytes and time waited since enough arrived for the last time.
    window: (u64, Duration),
    pace: Pace,
    received: u64,
    announced: Option<u64>,
    limit: u64,
    state: State,
}

/// The average that a body is held to, span after span of time waited for it: what came fast before excuses no drip now.
struct Pace {
    /// Bytes a second.
    least: u64,
    span: Duration,
    /// Bytes and time waited in this span.
    came: u64,
    waited: Duration,
}

impl Pace {
    /// Counts `bytes` that were waited for, and judges a span that has ended.
    fn judge(&mut self, bytes: u64, waited: Duration) -> Option<Fault> {
        self.came = self.came.saturating_add(bytes);
        self.waited = self.waited.saturating_add(waited);
        if self.waited < self.span {
            return None;
        }
        let (came, after) = (std::mem::take(&mut self.came), std::mem::take(&mut self.waited));
        let due = u128::from(self.least) * after.as_millis() / 1000;
        (u128::from(came) < due).then(|| Fault::TooSlow { came, after: Duration::from_secs(after.as_secs()), least: self.least })
    }
}

#[derive(Debug, Clone)]
enum State {
    Open,
    Ended,
    Failed(SourceError),
}

impl Body {
    /// The largest chunk, in bytes.
    pub const LARGEST_CHUNK: usize = 256 << 10;

    pub(super) fn new(incoming: Incoming, driver: Driver, at: At, allowed: (&Deadlines, &Caps), announced: Option<u64>) -> Self {
        let (idle, idle_progress) = (allowed.0.idle, allowed.1.idle_progress);
        let pace = Pace { least: allowed.1.least_rate, span: allowed.0.slow, came: 0, waited: Duration::ZERO };
        let (window, received, limit) = ((0, Duration::ZERO), 0, u64::MAX);
        Self { incoming, driver, at, idle, idle_progress, window, pace, received, announced, limit, state: State::Open }
    }

    /// Bytes received so far.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Bytes that this stream should have, where upstream said so.
    pub const fn announced(&self) -> Option<u64> {
        self.announced
    }

    /// Fails with [`Fault::TooLarge`] as soon as more than `limit` bytes have come.
    pub(super) fn limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Expects `announced` bytes, as a `Content-Range` said.
    pub(super) fn expect(&mut self, announced: u64) {
        self.announced = Some(announced);
    }

    /// The next bytes, never empty; `None` after the last ones. After an error, the same error again.
    ///
    /// Dropping the future loses no bytes.
    ///
    /// # Errors
    /// [`Fault::Stalled`], [`Fault::TooSlow`], [`Fault::Interrupted`], [`Fault::Truncated`], [`Fault::Excess`] or [`Fault::TooLarge`].
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, SourceError> {
        match &self.state {
            State::Open => {}
            State::Ended => return Ok(None),
            State::Failed(error) => return Err(error.clone()),
        }
        let next = self.next().await;
        self.state = match &next {
            Ok(Some(_)) => State::Open,
            Ok(None) => State::Ended,
            Err(fault) => State::Failed(SourceError::new(fault.clone(), self.at.clone())),
        };
        next.map_err(|fault| SourceError::new(fault, self.at.clone()))
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            let began = Instant::now();
            let patience = self.idle.saturating_sub(self.window.1);
            let Ok(frame) = timeout(patience, self.incoming.frame()).await else {
                return Err(Fault::Stalled { received: self.received, after: self.idle });
            };
            // Only waiting counts: a reader that comes late finds its bytes ready and has waited for nothing.
            let waited = began.elapsed();
            self.window.1 += waited;
            let Some(frame) = frame else {
                return self.end().await.map(|()| None);
            };
            let frame = frame.map_err(|error| self.broken(&error))?;
            // Trailers say nothing about the bytes.
            let Ok(data) = frame.into_data() else { continue };
            if data.is_empty() {
                continue;
            }
            let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
            self.received = self.received.saturating_add(length);
            self.window.0 += length;
            if self.window.0 >= self.idle_progress {
                self.window = (0, Duration::ZERO);
            }
            if let Some(fault) = self.pace.judge(length, waited) {
                return Err(fault);
            }
            if let Some(announced) = self.announced.filter(|announced| self.received > *announced) {
                return Err(Fault::Excess { announced });
            }
            if self.received > self.limit {
                return Err(Fault::TooLarge { limit: self.limit, announced: self.announced });
            }
            return Ok(Some(data));
        }
    }

    /// Judges a body that has ended by its own account.
    async fn end(&mut self) -> Result<(), Fault> {
        match self.announced {
            Some(announced) if self.received < announced => Err(Fault::Truncated { received: self.received, announced: Some(announced) }),
            Some(announced) if self.driver.found_more().await => Err(Fault::Excess { announced }),
            _ => Ok(()),
        }
    }

    /// What a broken body means: an end in the middle is upstream's, anything else the network's.
    fn broken(&self, error: &hyper::Error) -> Fault {
        let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
        let early_end = error.is_incomplete_message() || cause.is_some_and(|cause| cause.kind() == io::ErrorKind::UnexpectedEof);
        if early_end {
            return Fault::Truncated { received: self.received, announced: self.announced };
        }
        let what = cause.map_or_else(|| error.to_string(), ToString::to_string);
        Fault::Interrupted { received: self.received, what: super::answer::clean(&what, &[]) }
    }

    /// The body as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, SourceError>> + Send {
        futures::stream::unfold(Some(self), |body| async move {
            let mut body = body?;
            match body.chunk().await {
                Ok(Some(chunk)) => Some((Ok(chunk), Some(body))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// The first bytes, up to `most`, and whether that is all there is.
    ///
    /// # Errors
    /// As [`Self::chunk`].
    pub async fn head(&mut self, most: usize) -> Result<(Bytes, bool), SourceError> {
        let mut head = Vec::with_capacity(most.min(Self::LARGEST_CHUNK));
        while head.len() < most {
            match self.chunk().await? {
                Some(chunk) => head.extend_from_slice(chunk.get(..most - head.len()).unwrap_or(&chunk)),
                None => return Ok((head.into(), true)),
            }
        }
        Ok((head.into(), false))
    }

    /// The whole body, which may have at most `most` bytes.
    ///
    /// # Errors
    /// As [`Self::chunk`]; [`Fault::TooLarge`] where there is more.
    pub async fn whole(mut self, most: usize) -> Result<Bytes, SourceError> {
        self.limit(u64::try_from(most).unwrap_or(u64::MAX));
        let mut whole = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.into())
    }

    /// The beginning as text, as far as it comes within a few seconds: an error's words are not worth a long wait.
    pub(super) async fn text(&mut self, most: usize) -> String {
        const PATIENCE: Duration = Duration::from_secs(5);
        let mut text = Vec::new();
        let _ = timeout(PATIENCE.min(self.idle), async {
            while let Ok(Some(chunk)) = self.chunk().await {
                text.extend_from_slice(&chunk);
                if text.len() >= most {
                    break;
                }
            }
        })
        .await;
        text.truncate(most);
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("at", &self.at).field("received", &self.received).field("state", &self.state).finish_non_exhaustive()
    }
}

/// The task that reads one connection ahead of whoever takes the body, so that decryption and the reader's own work overlap.
/// It ends when dropped.
pub(super) struct Driver(JoinHandle<bool>);

impl Driver {
    pub fn spawn(mut connection: http1::Connection<TokioIo<Box<dyn Io>>, Full<Bytes>>) -> Self {
        Self(tokio::spawn(async move {
            let _ = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
            let parts = connection.into_parts();
            // Some servers end a body with a stray line break.
            let is_more = |bytes: &[u8]| !bytes.iter().all(u8::is_ascii_whitespace);
            let mut next = [0; 64];
            let mut io = parts.io.into_inner();
            let unread = io.read(&mut next).now_or_never().and_then(Result::ok).unwrap_or_default();
            is_more(&parts.read_buf) || is_more(next.get(..unread).unwrap_or_default())
        }))
    }

    /// Whether upstream sent more than the body it announced, as far as that has arrived. Asked when the body has ended.
    async fn found_more(&mut self) -> bool {
        const PATIENCE: Duration = Duration::from_secs(1);
        matches!(timeout(PATIENCE, &mut self.0).await, Ok(Ok(true)))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::Pace;

    /// By seconds waited and bytes that came in them: which one ends the body, at 10 bytes a second over 100 s.
    #[rstest]
    #[case::a_drip_that_is_never_idle(10, &[(59, 500), (59, 500)], Some(1))]
    #[case::just_enough(10, &[(50, 500), (50, 500), (99, 1), (1, 999)], None)]
    #[case::slow_only_for_a_while(10, &[(90, 1), (10, 999)], None)]
    #[case::fast_first_and_then_a_drip(10, &[(100, 1_000_000), (50, 1), (50, 1)], Some(2))]
    #[case::bytes_that_were_ready(10, &[(0, 1), (0, 1), (0, 1)], None)]
    #[case::one_long_wait(10, &[(500, 4_999)], Some(0))]
    #[case::none_asked_for(0, &[(1000, 1), (1000, 1)], None)]
    #[case::more_than_can_be_counted(u64::MAX, &[(1 << 40, 5)], Some(0))]
    fn a_drip_is_told_from_a_slow_while(#[case] least: u64, #[case] came: &[(u64, u64)], #[case] ends: Option<usize>) {
        let mut pace = Pace { least, span: Duration::from_secs(100), came: 0, waited: Duration::ZERO };
        assert_eq!(came.iter().position(|(waited, bytes)| pace.judge(*bytes, Duration::from_secs(*waited)).is_some()), ends);
    }
}
