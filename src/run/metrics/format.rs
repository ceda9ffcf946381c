//! The two text formats of a scrape, and which one was asked for.

use prometheus_client::{
    encoding::{prometheus_text, text},
    registry::Registry,
};
use std::fmt;

/// The media type of Prometheus's own text format, which every scraper reads.
pub const TEXT: &str = prometheus_text::CONTENT_TYPE;
/// The media type of OpenMetrics.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A format of a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format an `Accept` header asks for: OpenMetrics only where it is named and not liked less than plain text (RFC 9110
    /// §12.5.1), since a person with curl sends `*/*`.
    pub fn accepted(accept: &str) -> Self {
        let quality = |media: &str| {
            let ranges = accept.split(',').map(|range| range.split(';').map(str::trim).collect::<Vec<_>>());
            let of = ranges.filter(|range| range[0].eq_ignore_ascii_case(media)).map(|range| {
                let q = range.iter().find_map(|parameter| parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q=")));
                q.map_or(1.0, |q| q.parse::<f64>().unwrap_or(0.0))
            });
            of.fold(0.0, f64::max)
        };
        let open = quality("application/openmetrics-text");
        if open > 0.0 && open >= quality("text/plain") { Self::OpenMetrics } else { Self::Text }
    }

    /// Its media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => TEXT,
            Self::OpenMetrics => OPENMETRICS,
        }
    }

    pub(super) fn encode(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut out = String::new();
        match self {
            Self::Text => prometheus_text::encode(&mut out, registry)?,
            Self::OpenMetrics => text::encode(&mut out, registry)?,
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_only_for_those_who_ask_for_it() {
        // What Prometheus 2.42 and 3 send, curl, a browser, VictoriaMetrics.
        for (accept, format) in [
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            ("text/plain;version=0.0.4;q=1,application/openmetrics-text; q=0.5", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("*/*", Format::Text),
            ("", Format::Text),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Format::Text),
            ("text/plain;version=0.0.4;q=1,*/*;q=0.1", Format::Text),
            ("Application/OpenMetrics-Text", Format::OpenMetrics),
            ("application/openmetrics-text;q=rubbish,;;,", Format::Text),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }
}
