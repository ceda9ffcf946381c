//! From what is known to HTML. Every text from outside goes through [`Text`].

use std::fmt::{self, Display, Write as _};

use super::{GoldenView, ImageView, Page, State};

/// The page's only style; its hash is in the Content-Security-Policy, so that nothing else is one.
pub(super) const STYLE: &str = include_str!("page.css");

/// A text from outside, harmless in HTML text and in quoted attributes: markup is escaped, and characters that turn the direction
/// of what follows or cannot be seen are shown as the replacement character.
pub(super) struct Text<'a>(pub &'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(' ')?,
                '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' => f.write_char('\u{fffd}')?,
                c if c.is_control() => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// The whole page.
pub(super) fn render(page: &Page) -> Result<String, fmt::Error> {
    let mut out = String::new();
    let made = page.made.map_or_else(String::new, |made| format!("{}", made.strftime("%Y-%m-%d %H:%M:%S UTC")));
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Golden images</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <meta http-equiv=\"refresh\" content=\"30\"><style>{STYLE}</style></head><body><header><h1>Golden images</h1><p>{} · {}</p></header><main>",
        Text(&made),
        if page.leads { "this replica leads" } else { "this replica follows" },
    )?;
    if let Some(unknown) = &page.unknown {
        write!(out, "<p class=\"note\" role=\"status\">Not all is known yet: {}.</p>", Text(unknown))?;
    }
    counts(&mut out, page)?;
    refused(&mut out, page)?;
    trouble(&mut out, page)?;
    catalog(&mut out, page)?;
    users(&mut out, page)?;
    writeln!(
        out,
        "</main><footer><p>The same on the command line: <code>golden-catalog status</code>, <code>golden-catalog consumers NAME</code>.</p></footer></body></html>"
    )?;
    Ok(out)
}

fn counts(out: &mut String, page: &Page) -> fmt::Result {
    let of = |state| page.images.iter().filter(|image| image.state == state).count();
    write!(out, "<ul class=\"counts\">")?;
    for (state, number) in [State::Ready, State::Working, State::Stalled, State::Resting].map(|state| (state, of(state))) {
        write!(out, "<li class=\"{}\"><b>{number}</b> {}</li>", class(state), word(state))?;
    }
    write!(out, "</ul>")
}

fn refused(out: &mut String, page: &Page) -> fmt::Result {
    if page.refused.is_empty() {
        return Ok(());
    }
    write!(out, "<section><h2>Entries that become no image</h2><dl>")?;
    for (reason, message) in &page.refused {
        write!(out, "<dt class=\"stalled\">{}</dt><dd>{}</dd>", Text(reason), Text(message))?;
    }
    write!(out, "</dl></section>")
}

fn trouble(out: &mut String, page: &Page) -> fmt::Result {
    let trouble = |image: &&ImageView| image.state != State::Ready || !image.remarks.is_empty();
    if !page.images.iter().any(|image| trouble(&image)) {
        return Ok(());
    }
    write!(out, "<section><h2>What is not as it should be</h2><dl>")?;
    for image in page.images.iter().filter(trouble) {
        write!(out, "<dt class=\"{}\"><bdi>{}</bdi>", class(image.state), Text(&image.name))?;
        if image.state != State::Ready {
            write!(out, " <span class=\"reason\">{}</span>", Text(&image.reason))?;
        }
        write!(out, "</dt>")?;
        if image.state != State::Ready {
            write!(out, "<dd>{} <small>since {}</small></dd>", Text(&image.message), Text(&image.since))?;
        }
        for (kind, message) in &image.remarks {
            write!(out, "<dd><b>{}</b>: {}</dd>", Text(kind), Text(message))?;
        }
    }
    write!(out, "</dl></section>")
}

fn catalog(out: &mut String, page: &Page) -> fmt::Result {
    write!(out, "<section><h2>Catalog</h2>")?;
    if page.images.is_empty() {
        return write!(out, "<p>No image is in the catalog.</p></section>");
    }
    write!(
        out,
        "<table><thead><tr><th scope=\"col\">Image</th><th scope=\"col\">System</th><th scope=\"col\">State</th><th scope=\"col\">Goldens</th></tr></thead><tbody>"
    )?;
    for image in &page.images {
        write!(
            out,
            "<tr><th scope=\"row\" data-label=\"Image\"><bdi>{}</bdi><small>{}</small></th><td data-label=\"System\">{}</td>\
             <td data-label=\"State\" class=\"{}\">{}",
            Text(&image.name),
            Text(&image.description),
            Text(if image.system.is_empty() { "–" } else { &image.system }),
            class(image.state),
            word(image.state),
        )?;
        if image.state != State::Ready {
            write!(out, " <span class=\"reason\">{}</span>", Text(&image.reason))?;
        }
        progress(out, image.fetched, "download")?;
        write!(out, "</td><td data-label=\"Goldens\">")?;
        for golden in &image.goldens {
            one_golden(out, golden)?;
        }
        if image.goldens.is_empty() {
            write!(out, "–")?;
        }
        write!(out, "</td></tr>")?;
    }
    write!(out, "</tbody></table></section>")
}

fn one_golden(out: &mut String, golden: &GoldenView) -> fmt::Result {
    let name = if golden.name.is_empty() { "no name yet" } else { &golden.name };
    let class = if golden.class.is_empty() { "default class" } else { &golden.class };
    write!(out, "<div class=\"golden {}\">{}", if golden.ready { "ready" } else { "working" }, Text(class))?;
    if !golden.size.is_empty() {
        write!(out, " · {}", Text(&golden.size))?;
    }
    progress(out, golden.imported, "import")?;
    write!(out, "<small><bdi>{}</bdi></small></div>", Text(name))
}

fn progress(out: &mut String, percent: Option<i32>, of: &str) -> fmt::Result {
    match percent.map(|percent| percent.clamp(0, 100)) {
        Some(percent) => write!(out, " <progress max=\"100\" value=\"{percent}\" aria-label=\"{of}\">{percent} %</progress> {percent} %"),
        None => Ok(()),
    }
}

fn users(out: &mut String, page: &Page) -> fmt::Result {
    write!(out, "<section><h2>Who uses what</h2>")?;
    let mut some = false;
    for image in &page.images {
        match &image.users {
            Ok(users) if users.is_empty() => {}
            Ok(users) => {
                some = true;
                write!(
                    out,
                    "<details open><summary><bdi>{}</bdi> · {} {}</summary><table><thead><tr><th scope=\"col\">Pool</th><th scope=\"col\">Consumers</th><th scope=\"col\">Keep the golden</th></tr></thead><tbody>",
                    Text(&image.name),
                    users.len(),
                    if users.len() == 1 { "pool" } else { "pools" },
                )?;
                for user in users.iter().take(MOST_POOLS) {
                    write!(
                        out,
                        "<tr><th scope=\"row\" data-label=\"Pool\"><bdi>{}</bdi></th><td data-label=\"Consumers\">{}</td><td data-label=\"Keep the golden\">{}</td></tr>",
                        Text(&user.pool),
                        user.consumers,
                        user.blocking,
                    )?;
                }
                write!(out, "</tbody></table>")?;
                if users.len() > MOST_POOLS {
                    write!(
                        out,
                        "<p>and {} more: <code>golden-catalog consumers {}</code></p>",
                        users.len() - MOST_POOLS,
                        Text(&image.name)
                    )?;
                }
                write!(out, "</details>")?;
            }
            Err(why) => {
                some = true;
                write!(out, "<p><bdi>{}</bdi>: not known, {}</p>", Text(&image.name), Text(&why.0))?;
            }
        }
    }
    if !some {
        write!(out, "<p>Nobody uses an image of the catalog.</p>")?;
    }
    write!(out, "</section>")
}

/// Pools that are shown of one image; the command line shows all.
const MOST_POOLS: usize = 50;

const fn class(state: State) -> &'static str {
    match state {
        State::Ready => "ready",
        State::Working => "working",
        State::Stalled => "stalled",
        State::Resting => "resting",
    }
}

const fn word(state: State) -> &'static str {
    match state {
        State::Ready => "Ready",
        State::Working => "On its way",
        State::Stalled => "Stalled",
        State::Resting => "Resting",
    }
}
