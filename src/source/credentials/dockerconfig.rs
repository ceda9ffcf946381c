//! `kubernetes.io/dockerconfigjson`, matched as the kubelet does (k8s v1.35 `pkg/credentialprovider`), so
//! that a pull secret which works for pods works here, and one that does not is not guessed about.

use std::collections::{BTreeMap, BTreeSet};

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::Credentials;

/// The pairs of a pull secret.
pub struct DockerConfig {
    /// In the file's order, with keys as the kubelet reduces them.
    entries: Vec<(String, Entry)>,
    helpers: BTreeSet<String>,
    has_store: bool,
}

enum Entry {
    /// User and password.
    Pair(Credentials),
    /// Something that the kubelet does not read: an identity token.
    Unread(&'static str),
}

/// What a pull secret has for an image.
#[derive(Debug)]
pub enum Match {
    /// These, to be tried in order.
    Found(Vec<Credentials>),
    /// Something that is not read, by the name of its field.
    Unread(&'static str),
    /// Nothing.
    Nothing,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: Option<BTreeMap<String, Auth>>,
    #[serde(default, rename = "credHelpers")]
    helpers: Option<BTreeMap<String, serde_json::Value>>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
}

#[derive(Deserialize)]
struct Auth {
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<Zeroizing<String>>,
    #[serde(default)]
    auth: Option<Zeroizing<String>>,
    #[serde(default, rename = "identitytoken")]
    identity_token: Option<Zeroizing<String>>,
    #[serde(default, rename = "registrytoken")]
    registry_token: Option<Zeroizing<String>>,
}

impl DockerConfig {
    /// Reads the value of `.dockerconfigjson`, or with `legacy` that of `.dockercfg`, which is the inner map alone.
    ///
    /// # Errors
    /// What is wrong, without anything of it. As for the kubelet, one entry that cannot be read spoils all.
    pub fn parse(bytes: &[u8], legacy: bool) -> Result<Self, String> {
        let file: File = if legacy {
            let auths = object(bytes).ok_or_else(|| "it is not the JSON of a `.dockercfg`".to_owned())?;
            File { auths: Some(auths), helpers: None, store: None }
        } else {
            object(bytes).ok_or_else(|| "it is not the JSON of a Docker configuration".to_owned())?
        };
        let mut entries = Vec::new();
        for (place, auth) in file.auths.unwrap_or_default() {
            let entry = auth.entry().map_err(|what| format!("its entry for {:?} cannot be read: {what}", host_of(&place)))?;
            entries.push((reduced(&place), entry));
        }
        let has_store = file.store.is_some_and(|store| !store.is_empty());
        Ok(Self { entries, helpers: file.helpers.unwrap_or_default().into_keys().collect(), has_store })
    }

    /// What there is for `target`: an image's normalised name without tag and digest (`docker.io/library/nginx`), or a URL's
    /// host and path.
    pub fn for_target(&self, target: &str) -> Match {
        // The kubelet's index: each key once, in reverse order, so that longer paths come before shorter ones.
        let keys: BTreeSet<&str> = self.entries.iter().map(|(key, _)| key.as_str()).collect();
        let mut matching: Vec<&Entry> = Vec::new();
        for key in keys.into_iter().rev().filter(|key| matches(key, target)) {
            matching.extend(self.entries.iter().filter(|(known, _)| known == key).map(|(_, entry)| entry));
        }
        let host = target.split('/').next().unwrap_or_default();
        let is_hub = matches!(host, "docker.io" | "index.docker.io");
        if matching.is_empty() && is_hub {
            matching.extend(self.entries.iter().filter(|(known, _)| known == "index.docker.io").map(|(_, entry)| entry));
        }
        let found: Vec<_> = matching
            .iter()
            .filter_map(|entry| match entry {
                Entry::Pair(credentials) => Some(credentials.clone()),
                Entry::Unread(_) => None,
            })
            .collect();
        let unread = matching.iter().find_map(|entry| match entry {
            Entry::Unread(field) => Some(*field),
            Entry::Pair(_) => None,
        });
        match (found.is_empty(), unread) {
            (false, _) => Match::Found(found),
            (true, Some(field)) => Match::Unread(field),
            (true, None) if self.helpers.contains(host) => Match::Unread("credHelpers"),
            (true, None) if self.has_store && self.entries.is_empty() => Match::Unread("credsStore"),
            (true, None) => Match::Nothing,
        }
    }
}

impl Auth {
    fn entry(self) -> Result<Entry, &'static str> {
        let (mut username, mut password) = (self.username.unwrap_or_default(), self.password.unwrap_or_default());
        if let Some(auth) = self.auth.filter(|auth| !auth.is_empty()) {
            (username, password) = decode(&auth)?;
        }
        if username.is_empty() && password.is_empty() {
            let token = self.identity_token.or(self.registry_token).is_some_and(|token| !token.is_empty());
            return if token { Ok(Entry::Unread("identitytoken")) } else { Ok(Entry::Unread("username")) };
        }
        Ok(Entry::Pair(Credentials::Basic { username, password }))
    }
}

/// `auth`: base64 of `user:password`, padded or not, split at the first colon.
fn decode(auth: &str) -> Result<(String, Zeroizing<String>), &'static str> {
    let config = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true).with_decode_padding_mode(DecodePaddingMode::Indifferent);
    // Go's decoder passes over line breaks, which `base64` on a shell puts in.
    let text: Zeroizing<String> = Zeroizing::new(auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect());
    let bytes = GeneralPurpose::new(&STANDARD, config).decode(text.as_bytes()).map_err(|_| "`auth` is not base64")?;
    let text = String::from_utf8(bytes).map(Zeroizing::new).map_err(|_| "`auth` is not text")?;
    let (username, password) = text.split_once(':').ok_or("`auth` is not base64 of user:password")?;
    Ok((username.to_owned(), Zeroizing::new(password.to_owned())))
}

/// A key without scheme and without a leading `/v1` or `/v2`.
fn reduced(place: &str) -> String {
    let rest = place.strip_prefix("https://").or_else(|| place.strip_prefix("http://")).unwrap_or(place);
    let (host, path) = split(rest);
    let path = if path.starts_with("/v1/") || path.starts_with("/v2/") { &path[3..] } else { path };
    if path == "/" { host.to_owned() } else { format!("{host}{path}") }
}

/// Host and port, and the path, of a URL without its scheme. What Go's parser keeps apart is left out: user, query, fragment.
fn split(text: &str) -> (&str, &str) {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = text.split_at(text.find('/').unwrap_or(text.len()));
    (authority.rsplit('@').next().unwrap_or_default(), path)
}

/// The host of a key, for a message: a key may be a URL with a password in it.
fn host_of(place: &str) -> String {
    let reduced = reduced(place);
    split(&reduced).0.chars().take(100).collect()
}

/// Whether a key matches an image: equal ports, as many labels, each label by a glob of its own, and the path as the start of
/// the image's, as a string.
fn matches(key: &str, target: &str) -> bool {
    let ((key_host, key_path), (host, path)) = (split(key), split(target));
    let ((key_host, key_port), (host, port)) = (port_of(key_host), port_of(host));
    let (key_labels, labels): (Vec<_>, Vec<_>) = (key_host.split('.').collect(), host.split('.').collect());
    key_port == port
        && key_labels.len() == labels.len()
        && path.starts_with(key_path)
        && key_labels.iter().zip(&labels).all(|(pattern, label)| glob(pattern.as_bytes(), label.as_bytes()) == Some(true))
}

/// What a JSON object says: serde would take a list for a struct too.
fn object<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    value.is_object().then(|| serde_json::from_value(value).ok()).flatten()
}

/// Host and port, as `net.SplitHostPort` tells them apart.
fn port_of(host: &str) -> (&str, &str) {
    if let Some(rest) = host.strip_prefix('[') {
        return match rest.split_once("]:") {
            Some((host, port)) => (host, port),
            None => (host, ""),
        };
    }
    match host.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, port),
        _ => (host, ""),
    }
}

/// Go's `filepath.Match` for one label; `None` for a pattern that it cannot read.
fn glob(pattern: &[u8], text: &[u8]) -> Option<bool> {
    glob_at(pattern, text, &mut BTreeSet::new())
}

/// `failed` remembers from which lengths of pattern and text no star led to a match, because somebody else writes the
/// pattern: without it many stars would take time without end.
fn glob_at(pattern: &[u8], text: &[u8], failed: &mut BTreeSet<(usize, usize)>) -> Option<bool> {
    let Some((first, rest)) = pattern.split_first() else { return Some(text.is_empty()) };
    match first {
        b'*' => {
            // Many stars in a row are one.
            let rest = &rest[rest.iter().take_while(|c| **c == b'*').count()..];
            if failed.contains(&(rest.len(), text.len())) {
                return Some(false);
            }
            for at in 0..=text.len() {
                if glob_at(rest, &text[at..], failed)? {
                    return Some(true);
                }
            }
            failed.insert((rest.len(), text.len()));
            Some(false)
        }
        b'?' => match text.split_first() {
            Some((_, text)) => glob_at(rest, text, failed),
            None => Some(false),
        },
        b'[' => {
            let (negated, mut rest) = match rest.strip_prefix(b"^") {
                Some(rest) => (true, rest),
                None => (false, rest),
            };
            let Some((c, text)) = text.split_first() else { return Some(false) };
            let (mut found, mut first) = (false, true);
            loop {
                if let Some(after) = rest.strip_prefix(b"]").filter(|_| !first) {
                    return if found == negated { Some(false) } else { glob_at(after, text, failed) };
                }
                first = false;
                let (low, after) = class_char(rest)?;
                (rest, found) = match after.strip_prefix(b"-") {
                    Some(after) => {
                        let (high, after) = class_char(after)?;
                        (after, found || (low..=high).contains(c))
                    }
                    None => (after, found || low == *c),
                };
            }
        }
        b'\\' => {
            let (escaped, rest) = rest.split_first()?;
            if text.first() == Some(escaped) { glob_at(rest, &text[1..], failed) } else { Some(false) }
        }
        literal => {
            if text.first() == Some(literal) {
                glob_at(rest, &text[1..], failed)
            } else {
                Some(false)
            }
        }
    }
}

/// One character of a class, maybe escaped.
fn class_char(rest: &[u8]) -> Option<(u8, &[u8])> {
    match rest.split_first()? {
        (b'-' | b']', _) => None,
        (b'\\', rest) => rest.split_first().map(|(c, rest)| (*c, rest)),
        (c, rest) => Some((*c, rest)),
    }
}

#[cfg(test)]
#[path = "dockerconfig_tests.rs"]
mod tests;
