//! The page over HTTP: one address, for people who reach it over loopback.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use base64::Engine as _;
use sha2::{Digest as _, Sha256};

use super::{Page, html};

type Make = Arc<dyn Fn() -> Page + Send + Sync>;

/// Serves the page that `make` gives at each request. `loopback` is whether only this machine reaches it: then other host names than
/// its own are refused, since a web page elsewhere may have its name lead here (DNS rebinding).
pub fn router(loopback: bool, make: impl Fn() -> Page + Send + Sync + 'static) -> Router {
    let style = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(html::STYLE));
    let policy = format!("default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    let make: Make = Arc::new(make);
    Router::new().route("/", get(answer)).with_state((make, Arc::from(policy), loopback))
}

async fn answer(State((make, policy, loopback)): State<(Make, Arc<str>, bool)>, headers: HeaderMap) -> Response {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if loopback && !is_loopback(host) {
        return (StatusCode::MISDIRECTED_REQUEST, "This page is for localhost only.\n").into_response();
    }
    // Rendering asks caches and writes a string: short, and never waiting for anybody.
    match html::render(&make()) {
        Ok(page) => (
            [
                (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                (header::CONTENT_SECURITY_POLICY, &*policy),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::X_FRAME_OPTIONS, "DENY"),
                (header::REFERRER_POLICY, "no-referrer"),
                (header::CACHE_CONTROL, "no-store"),
            ],
            page,
        )
            .into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Whether a `Host` header names this machine.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<http::uri::Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
