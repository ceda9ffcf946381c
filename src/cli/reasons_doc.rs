//! The troubleshooting page by reason, generated so that no reason lacks its entry.

use crate::rules::Reason;

/// The page as Markdown.
pub fn reasons_page() -> String {
    let mut page = String::from(
        "# Troubleshooting by reason\n\nGenerated from `src/rules/reason.rs` by `make generate`; do not edit.\n\nA reason stands in the `Ready` condition of a GoldenImage (`kubectl get gi`), in Events and in metric labels. The condition's message says what happened and ends with the remedy. *Terminal* reasons set `Stalled=True` at once; NotFound, Unauthorized and Forbidden do so after 15 minutes.\n\n| reason | terminal | what it means | what to do |\n|---|---|---|---|\n",
    );
    for reason in Reason::ALL {
        let terminal = if reason.is_terminal() {
            "yes"
        } else if reason.is_terminal_in_time() {
            "after 15 min"
        } else {
            ""
        };
        page.push_str(&format!("| {reason} | {terminal} | {} | {} |\n", reason.meaning(), reason.remedy()));
    }
    page
}
