//! What a scripted upstream answers: honestly at first, then bent by the methods.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
};

use super::{Hit, reset_on_close, write_all};

/// A connection that can be ended by a reset.
pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {
    fn tcp(&self) -> &TcpStream;
}

impl Wire for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Wire for tokio_rustls::server::TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// Something a script waits for: opened by the test.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<Notify>);

impl Gate {
    pub fn open(&self) {
        self.0.notify_one();
    }
}

/// How a body ends.
#[derive(Debug, Clone)]
enum End {
    /// After its last byte.
    Whole,
    /// After so many bytes, by an orderly end of the connection.
    Cut(usize),
    /// After so many bytes, by a reset.
    Reset(usize),
    /// After so many bytes nothing more comes, and the connection stays.
    Stall(usize),
    /// After its last byte, of which those after the first so many come when the gate is open.
    Pause(usize, Gate),
    /// Never: the body is sent over and over.
    Endless,
    /// A byte at a time, with this pause.
    Drip(Duration),
}

/// One scripted answer.
#[derive(Debug, Clone)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// What `Content-Length` says; `None` for no such header.
    announced: Option<Option<u64>>,
    ranges: bool,
    chunked: bool,
    head_status: Option<u16>,
    gate: Option<Gate>,
    end: End,
    raw: Option<Vec<u8>>,
}

impl Answer {
    /// A file, served as nginx serves one: `HEAD`, `ETag`, `Range` and `If-Range`.
    pub fn file(body: impl Into<Vec<u8>>) -> Self {
        Self { ranges: true, ..Self::new(200, body) }.header("Accept-Ranges", "bytes").header("ETag", "\"v1\"")
    }

    /// A status with a body, and no ranges: what an Image Factory does.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            announced: None,
            ranges: false,
            chunked: false,
            head_status: None,
            gate: None,
            end: End::Whole,
            raw: None,
        }
    }

    /// A status with a text, as a Go server's `http.Error`.
    pub fn text(status: u16, text: &str) -> Self {
        Self::new(status, text).header("Content-Type", "text/plain; charset=utf-8")
    }

    /// A redirect.
    pub fn redirect(status: u16, location: &str) -> Self {
        Self::new(status, "").header("Location", location)
    }

    /// These bytes and the end, whatever was asked.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self { raw: Some(bytes.into()), ..Self::new(200, "") }
    }

    /// Sets a header; one of that name is replaced.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes a header away.
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    /// Announces this length, whatever is sent.
    pub fn announce(self, length: u64) -> Self {
        Self { announced: Some(Some(length)), ..self }
    }

    /// Announces no length: the body ends with the connection.
    pub fn no_length(self) -> Self {
        Self { announced: Some(None), ..self }
    }

    /// Sends the body in chunks.
    pub fn chunked(self) -> Self {
        Self { chunked: true, ..self }
    }

    /// Ends the connection after so many bytes of the body.
    pub fn cut(self, after: usize) -> Self {
        Self { end: End::Cut(after), ..self }
    }

    /// Resets the connection after so many bytes of the body.
    pub fn reset(self, after: usize) -> Self {
        Self { end: End::Reset(after), ..self }
    }

    /// Sends nothing more after so many bytes of the body.
    pub fn stall(self, after: usize) -> Self {
        Self { end: End::Stall(after), ..self }
    }

    /// Sends so many bytes of the body, and the rest when the gate is open.
    pub fn pause(self, after: usize, gate: &Gate) -> Self {
        Self { end: End::Pause(after, gate.clone()), ..self }
    }

    /// Repeats the body for ever.
    pub fn endless(self) -> Self {
        Self { end: End::Endless, ..self }
    }

    /// Sends a byte at a time.
    pub fn drip(self, pause: Duration) -> Self {
        Self { end: End::Drip(pause), ..self }
    }

    /// Ignores `Range`.
    pub fn no_ranges(self) -> Self {
        Self { ranges: false, ..self }.without("Accept-Ranges")
    }

    /// Answers `HEAD` with this status.
    pub fn head(self, status: u16) -> Self {
        Self { head_status: Some(status), ..self }
    }

    /// Answers nothing before the gate is open.
    pub fn hold(self, gate: &Gate) -> Self {
        Self { gate: Some(gate.clone()), ..self }
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The bytes of the body that `hit` asks for, as (first, end), where this answer serves ranges.
    fn range(&self, hit: &Hit) -> Option<Result<(usize, usize), ()>> {
        let range = hit.header("range").filter(|_| self.ranges && self.status == 200)?.strip_prefix("bytes=")?;
        if hit
            .header("if-range")
            .is_some_and(|validator| Some(validator) != self.value("etag") && Some(validator) != self.value("last-modified"))
        {
            return None;
        }
        let (first, last) = range.split_once('-')?;
        let first: usize = first.parse().ok()?;
        let end = last.parse::<usize>().map_or(self.body.len(), |last| self.body.len().min(last + 1));
        Some(if first < end { Ok((first, end)) } else { Err(()) })
    }

    /// Writes the answer; the number of body bytes that went out.
    pub(super) async fn write<S: Wire>(&self, stream: &mut S, hit: &Hit) -> u64 {
        if let Some(gate) = &self.gate {
            gate.0.notified().await;
        }
        if let Some(raw) = &self.raw {
            let sent = if write_all(stream, raw).await.is_ok() { raw.len() as u64 } else { 0 };
            let _ = stream.shutdown().await;
            return sent;
        }
        let is_head = hit.method == "HEAD";
        let (mut status, mut body, mut extra) = (self.status, self.body.as_slice(), String::new());
        match self.range(hit) {
            Some(Ok((first, end))) => {
                extra = format!("Content-Range: bytes {first}-{}/{}\r\n", end - 1, body.len());
                (status, body) = (206, &body[first..end]);
            }
            Some(Err(())) => {
                extra = format!("Content-Range: bytes */{}\r\n", body.len());
                (status, body) = (416, &[]);
            }
            None => {}
        }
        if let Some(refused) = self.head_status.filter(|_| is_head) {
            (status, body) = (refused, &[]);
        }
        let mut head = format!("HTTP/1.1 {status} Scripted\r\nConnection: close\r\n{extra}");
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let length = if status == self.status { self.announced } else { None };
        match length.unwrap_or(Some(body.len() as u64)) {
            _ if self.chunked => head.push_str("Transfer-Encoding: chunked\r\n"),
            Some(length) => head.push_str(&format!("Content-Length: {length}\r\n")),
            None => {}
        }
        head.push_str("\r\n");
        if is_head {
            let _ = write_all(stream, head.as_bytes()).await;
            return 0;
        }
        self.write_body(stream, head.into_bytes(), body).await
    }

    async fn write_body<S: Wire>(&self, stream: &mut S, head: Vec<u8>, body: &[u8]) -> u64 {
        let part = match self.end {
            End::Cut(after) | End::Reset(after) | End::Stall(after) | End::Pause(after, _) => &body[..after.min(body.len())],
            _ => body,
        };
        let mut sent = 0;
        // A short answer goes out in one piece, so that what a client sees first does not depend on the network.
        let framed = |piece: &[u8]| {
            if self.chunked { [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat() } else { piece.to_vec() }
        };
        match &self.end {
            End::Drip(pause) => {
                let _ = write_all(stream, &head).await;
                for byte in part {
                    if write_all(stream, &framed(&[*byte])).await.is_err() {
                        return sent;
                    }
                    sent += 1;
                    tokio::time::sleep(*pause).await;
                }
            }
            End::Endless => {
                let _ = write_all(stream, &head).await;
                while write_all(stream, &framed(part)).await.is_ok() {
                    sent += part.len() as u64;
                }
                return sent;
            }
            _ => {
                let mut first = head;
                for piece in part.chunks(64 << 10).chain(part.is_empty().then_some(&[][..])) {
                    if !piece.is_empty() {
                        first.extend(framed(piece));
                    }
                    if write_all(stream, &first).await.is_err() {
                        return sent;
                    }
                    sent += piece.len() as u64;
                    first.clear();
                }
            }
        }
        if let End::Pause(_, gate) = &self.end {
            gate.0.notified().await;
            for piece in body[part.len()..].chunks(64 << 10) {
                if write_all(stream, &framed(piece)).await.is_err() {
                    return sent;
                }
                sent += piece.len() as u64;
            }
        }
        match self.end {
            End::Stall(_) => std::future::pending::<()>().await,
            End::Reset(_) => {
                // What was written must have gone out: a reset throws away what is still queued on the other side.
                tokio::time::sleep(Duration::from_millis(50)).await;
                reset_on_close(stream.tcp());
            }
            End::Cut(_) => {
                let _ = stream.shutdown().await;
            }
            _ => {
                if self.chunked {
                    let _ = write_all(stream, b"0\r\n\r\n").await;
                }
                let _ = stream.shutdown().await;
            }
        }
        sent
    }
}
