//! Which entry of a layer is the disk.
//!
//! KubeVirt wants the folder `/disk` of the whole image to hold exactly one entry; CDI takes the first entry, in the order
//! of layers, whose path begins with `disk`, and knows neither whiteouts nor later layers. The catalog takes what both
//! would take, and refuses, with what was found, where they would not agree.

use std::io::Read;

use super::{
    fault::ContainerFault,
    header::Kind,
    tar::{Entry, Tar},
};
use crate::artifact::ArtifactError;

/// Looks at the entries of one image's layers, one after the other.
#[derive(Debug, Default)]
pub(super) struct Finder {
    found: Option<String>,
    folder: bool,
}

/// Where an entry lies.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere near.
    Elsewhere,
    /// `disk` itself.
    Folder,
    /// Right under `disk/`.
    Under,
    /// Deeper: CDI would take it, and KubeVirt finds a folder in its place.
    Deeper,
    /// Not under `disk/`, but CDI looks at the first letters only.
    Looks,
    /// Under `disk/` for whoever unpacks it, and not for CDI.
    Hidden,
    /// A mark of deletion that concerns `disk/`.
    Whiteout,
}

impl Finder {
    /// Whether this entry is the disk file.
    pub fn look(&mut self, entry: &Entry) -> Result<bool, ContainerFault> {
        let place = place(&entry.path);
        let name = || shown(&entry.path);
        if matches!(place, Place::Elsewhere) {
            return Ok(false);
        }
        if place == Place::Whiteout {
            return Err(ContainerFault::Ambiguous {
                what: format!("it holds the mark of deletion {}, which KubeVirt obeys and CDI does not", name()),
            });
        }
        match (place, entry.kind) {
            (Place::Folder, Kind::Folder) => {
                self.folder = true;
                Ok(false)
            }
            (Place::Folder | Place::Under | Place::Deeper | Place::Hidden, Kind::HardLink | Kind::SymbolicLink) => {
                let kind = if entry.kind == Kind::HardLink { "hard link" } else { "symbolic link" };
                Err(ContainerFault::Linked { name: name(), kind })
            }
            (Place::Folder, _) => Err(ContainerFault::None { found: "`disk` is no folder".to_owned() }),
            (Place::Under, Kind::Sparse) => Err(ContainerFault::Sparse { name: name() }),
            (Place::Under, Kind::File) => match &self.found {
                None => {
                    self.found = Some(name());
                    Ok(true)
                }
                Some(first) => Err(ContainerFault::Several { first: first.clone(), second: name() }),
            },
            (Place::Under | Place::Deeper, Kind::Folder) => {
                Err(ContainerFault::Ambiguous { what: format!("it holds the folder {} where KubeVirt expects one file only", name()) })
            }
            (Place::Deeper, _) => {
                Err(ContainerFault::Ambiguous { what: format!("{} lies in a folder below `disk/`, where KubeVirt does not look", name()) })
            }
            (Place::Under, _) => Err(ContainerFault::None { found: format!("{} is neither a file nor a link", name()) }),
            (Place::Hidden, Kind::Folder) => Ok(false),
            (Place::Hidden, _) => Err(ContainerFault::Ambiguous {
                what: format!("{} is written in a way that CDI does not find; name it `disk/…` in the layer", name()),
            }),
            // After the disk CDI has stopped looking.
            (Place::Looks, Kind::Folder) => Ok(false),
            (Place::Looks, _) if self.found.is_none() => {
                Err(ContainerFault::Ambiguous { what: format!("{} stands before `disk/`, and CDI would take it for the disk", name()) })
            }
            (Place::Looks | Place::Elsewhere | Place::Whiteout, _) => Ok(false),
        }
    }

    /// The name of the disk file, or what was found instead.
    pub fn finish(self) -> Result<String, ContainerFault> {
        let found = if self.folder { "the folder `disk/` is empty" } else { "there is no folder `disk/`" };
        self.found.ok_or_else(|| ContainerFault::None { found: found.to_owned() })
    }

    /// Whether a disk was seen.
    pub fn has_found(&self) -> bool {
        self.found.is_some()
    }
}

/// Reads an archive on to its disk file; `false` at its end.
pub(super) fn advance<R: Read>(tar: &mut Tar<R>, finder: &mut Finder) -> Result<Option<Entry>, ArtifactError> {
    while let Some(entry) = tar.next()? {
        if finder.look(&entry)? {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

fn place(path: &[u8]) -> Place {
    let mut rest = path;
    while let Some(stripped) = rest.strip_prefix(b"./") {
        rest = stripped;
    }
    // What CDI sees: one `./` at most.
    let seen = path.strip_prefix(b"./").unwrap_or(path);
    let parts: Vec<&[u8]> = rest.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    let (first, others) = match parts.split_first() {
        Some((first, others)) => (*first, others),
        None => return Place::Elsewhere,
    };
    if first == b".wh.disk" || (first == b".wh..wh..opq" && others.is_empty()) {
        return Place::Whiteout;
    }
    if parts.contains(&&b".."[..]) {
        // Whoever unpacks it refuses it or lands who knows where.
        return if parts.contains(&&b"disk"[..]) || seen.starts_with(b"disk") { Place::Hidden } else { Place::Elsewhere };
    }
    if first != b"disk" {
        return if seen.starts_with(b"disk") { Place::Looks } else { Place::Elsewhere };
    }
    let place = match others {
        [] => return Place::Folder,
        [name, ..] if name.starts_with(b".wh.") => return Place::Whiteout,
        [_] => Place::Under,
        _ => Place::Deeper,
    };
    if seen.starts_with(b"disk/") { place } else { Place::Hidden }
}

/// A path as it may be shown: whoever made the layer wrote it.
fn shown(path: &[u8]) -> String {
    const LONGEST: usize = 60;
    let text = String::from_utf8_lossy(path);
    let cut: String = text.chars().take(LONGEST).collect();
    let more = if text.chars().count() > LONGEST { "…" } else { "" };
    format!("`{}{more}`", cut.escape_debug())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Finder, Place, advance, place, shown};
    use crate::artifact::container::{samples::TarSample, tar::Tar};

    #[rstest]
    #[case("disk/disk.img", Place::Under)]
    #[case("./disk/disk.img", Place::Under)]
    #[case("disk", Place::Folder)]
    #[case("disk/", Place::Folder)]
    #[case("./disk/", Place::Folder)]
    #[case("disk/a/b", Place::Deeper)]
    #[case("diskette", Place::Looks)]
    #[case("./disks/a", Place::Looks)]
    #[case("/disk/a", Place::Hidden)]
    #[case("././disk/a", Place::Hidden)]
    #[case("a/../disk/a", Place::Hidden)]
    #[case("disk/../etc/passwd", Place::Hidden)]
    #[case("../etc/passwd", Place::Elsewhere)]
    #[case("etc/disk/a", Place::Elsewhere)]
    #[case(".wh.disk", Place::Whiteout)]
    #[case("disk/.wh.a", Place::Whiteout)]
    #[case("disk/.wh..wh..opq", Place::Whiteout)]
    #[case(".wh..wh..opq", Place::Whiteout)]
    #[case("etc/.wh.a", Place::Elsewhere)]
    #[case("", Place::Elsewhere)]
    #[case("/", Place::Elsewhere)]
    fn places(#[case] path: &str, #[case] expected: Place) {
        assert_eq!(place(path.as_bytes()), expected, "{path}");
    }

    fn disk_of(bytes: &[u8]) -> Result<String, String> {
        let (mut tar, mut finder) = (Tar::new(bytes), Finder::default());
        while advance(&mut tar, &mut finder).map_err(|error| format!("{} {error}", error.reason()))?.is_some() {}
        finder.finish().map_err(|fault| format!("{} {fault}", fault.reason()))
    }

    #[rstest]
    #[case(TarSample::new().folder("disk/").file("disk/disk.img", b"x"), "`disk/disk.img`")]
    #[case(TarSample::new().file("disk/a.qcow2", b"x"), "`disk/a.qcow2`")]
    #[case(TarSample::new().file("bin/sh", b"x").file("disk/a", b"x").file("etc/passwd", b"x"), "`disk/a`")]
    #[case(TarSample::new().file("disk/a", b"x").file("diskette", b"x"), "`disk/a`")]
    #[case(TarSample::new().folder("disks/").file("disk/a", b"x"), "`disk/a`")]
    fn r2_the_one_file_is_found(#[case] tar: TarSample, #[case] name: &str) {
        assert_eq!(disk_of(&tar.finish()).as_deref(), Ok(name));
    }

    #[rstest]
    #[case(TarSample::new().file("etc/passwd", b"x"), "NoDiskFile", "there is no folder `disk/`")]
    #[case(TarSample::new().folder("disk/"), "NoDiskFile", "is empty")]
    #[case(TarSample::new().file("disk", b"x"), "NoDiskFile", "`disk` is no folder")]
    #[case(TarSample::new().file("disk/a", b"x").file("disk/b", b"x"), "SeveralDiskFiles", "`disk/a` and `disk/b`")]
    #[case(TarSample::new().file("disk/a", b"x").file("disk/a", b"x"), "SeveralDiskFiles", "`disk/a` and `disk/a`")]
    #[case(TarSample::new().link("disk/a", "/images/a", false), "LinkedDiskFile", "symbolic link")]
    #[case(TarSample::new().file("a", b"x").link("disk/a", "a", true), "LinkedDiskFile", "hard link")]
    #[case(TarSample::new().link("disk", "images", false), "LinkedDiskFile", "symbolic link")]
    #[case(TarSample::new().file("disk/a/b.img", b"x"), "AmbiguousDiskFile", "`disk/a/b.img`")]
    #[case(TarSample::new().folder("disk/sub/"), "AmbiguousDiskFile", "folder")]
    #[case(TarSample::new().file("diskette", b"x").file("disk/a", b"x"), "AmbiguousDiskFile", "`diskette`")]
    #[case(TarSample::new().raw("/disk/a", b"x"), "AmbiguousDiskFile", "`/disk/a`")]
    #[case(TarSample::new().file("disk/a", b"x").file("disk/.wh.b", b""), "AmbiguousDiskFile", "mark of deletion")]
    fn what_was_found_instead_is_said(#[case] tar: TarSample, #[case] reason: &str, #[case] expected: &str) {
        let told = disk_of(&tar.finish()).expect_err(expected);
        assert!(told.starts_with(reason) && told.contains(expected), "{told}");
    }

    #[test]
    fn names_are_bounded_and_escaped() {
        let text = shown(format!("disk/\u{1b}[31m\n{}", "x".repeat(100)).as_bytes());
        assert!(!text.contains('\u{1b}') && !text.contains('\n') && text.chars().count() < 90, "{text}");
    }
}
