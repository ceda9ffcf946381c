//! R5: what already stands under a golden's name, and whether the catalog takes it over.
//!
//! Adoption writes metadata and nothing else, so it is decided by what can be read: where the volume's content came from, and
//! whether its claim is what the image's target asks for. What cannot be read is never guessed.

use url::Url;

use super::marks;
use crate::model::{DiskSize, HttpUrl, public_url};

/// The prefixes of the former catalogs' goldens, whose owners need not be asked.
const FORMER: [&str; 2] = ["talos-worker-", "vm-default-images-"];

/// Where the content of a volume came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An import from this URL, as it was written.
    Url(String),
    /// The marks of the former worker catalog: schematic and Talos release. The factory is not known.
    Talos {
        /// The schematic's ID.
        schematic: String,
        /// The release.
        version: String,
    },
    /// Something that no image of the catalog comes from, in words.
    Other(String),
    /// Nothing says.
    Unknown,
}

/// A volume of a golden's name that does not carry our mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// Where its content came from.
    pub origin: Origin,
    /// Its claim's StorageClass.
    pub class: Option<String>,
    /// Its size as it was asked for; of a claim without DataVolume, the claim's request.
    pub size: Option<DiskSize>,
    /// Its claim's volume mode.
    pub volume_mode: Option<String>,
    /// Its claim's access modes.
    pub access_modes: Vec<String>,
    /// Whether it carries the annotation that asks for adoption.
    pub consent: bool,
}

/// What an image wants under the name. What it leaves open, the volume decides.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The golden's name.
    pub golden: &'a str,
    /// Where the image's bytes come from.
    pub url: Option<&'a HttpUrl>,
    /// The schematic and release of a Talos image for openstack and amd64, which is all the former catalog made.
    pub talos: Option<(&'a str, &'a str)>,
    /// The StorageClass, where one is named.
    pub class: Option<&'a str>,
    /// The size, where one is given.
    pub size: Option<DiskSize>,
    /// The volume mode, where one is given.
    pub volume_mode: Option<&'a str>,
    /// The access modes; empty where none are given.
    pub access_modes: &'a [String],
}

/// The verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adoption {
    /// The same image: taken over.
    Adopt,
    /// Something else, or not known to be the same: left alone, and why.
    Refuse(String),
}

/// Whether a volume is taken over (R5). A refusal names each difference, or the annotation that is wanted.
pub fn adoption(wanted: &Wanted<'_>, found: &Stranger) -> Adoption {
    let mut differences = Vec::new();
    let known = match &found.origin {
        Origin::Url(url) => {
            if !wanted.url.is_some_and(|wanted| url.parse::<HttpUrl>().is_ok_and(|url| url == *wanted)) {
                let (was, is) = (shown(url), wanted.url.map_or_else(|| "no URL".to_owned(), HttpUrl::public));
                let is = if was == is { format!("{is} with another query or spelling") } else { is };
                differences.push(format!("source: it was imported from {was}, the image comes from {is}"));
            }
            true
        }
        Origin::Talos { schematic, version } => {
            if wanted.talos != Some((schematic, version)) {
                let is = wanted.talos.map_or_else(|| "another source".to_owned(), |(schematic, version)| format!("{schematic} {version}"));
                differences.push(format!("source: it holds Talos {schematic} {version}, the image is {is}"));
            }
            true
        }
        Origin::Other(what) => {
            differences.push(format!("source: {what}"));
            true
        }
        Origin::Unknown => false,
    };
    let mut compare = |what: &str, wanted: Option<String>, found: Option<String>| {
        if let (Some(wanted), Some(found)) = (wanted, found)
            && wanted != found
        {
            differences.push(format!("{what}: it has {found}, the target asks for {wanted}"));
        }
    };
    compare("storageClassName", wanted.class.map(str::to_owned), found.class.clone());
    compare("size", wanted.size.map(|size| size.to_string()), found.size.map(|size| size.to_string()));
    compare("volumeMode", wanted.volume_mode.map(str::to_owned), found.volume_mode.clone());
    let modes = |modes: &[String]| {
        let mut modes = modes.to_vec();
        modes.sort_unstable();
        (!modes.is_empty()).then(|| modes.join(", "))
    };
    compare("accessModes", modes(wanted.access_modes), modes(&found.access_modes));

    if !differences.is_empty() {
        let differences = differences.join("; ");
        return Adoption::Refuse(format!("{} exists in the catalog namespace and is not this image ({differences})", wanted.golden));
    }
    let former = FORMER.iter().any(|prefix| wanted.golden.starts_with(prefix));
    if found.consent || known && former {
        return Adoption::Adopt;
    }
    let why = if known { "has the same source and was not made by the catalog" } else { "does not say where its content came from" };
    Adoption::Refuse(format!(
        "{} exists in the catalog namespace and {why}: if it is this image, annotate it `{}: \"true\"` and it is taken over as it is",
        wanted.golden,
        marks::ADOPT,
    ))
}

/// A URL as a message may repeat it.
fn shown(url: &str) -> String {
    Url::parse(url).map_or_else(|_| "a URL that cannot be read".to_owned(), |url| public_url(&url))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Adoption, Origin, Stranger, Wanted, adoption};

    const URL: &str = "https://e.example/noble.img?t=hunter2";

    fn stranger(origin: Origin) -> Stranger {
        Stranger {
            origin,
            class: Some("replicated".into()),
            size: Some("20Gi".parse().expect("size")),
            volume_mode: Some("Block".into()),
            access_modes: vec!["ReadWriteMany".into()],
            consent: false,
        }
    }

    fn url(text: &str) -> Origin {
        Origin::Url(text.into())
    }

    fn talos(schematic: &str, version: &str) -> Origin {
        Origin::Talos { schematic: schematic.into(), version: version.into() }
    }

    fn judge(golden: &str, found: &Stranger, change: impl FnOnce(&mut Wanted<'_>)) -> Result<(), String> {
        let wanted_url = URL.parse().expect("URL");
        let mut wanted = Wanted {
            golden,
            url: Some(&wanted_url),
            talos: Some(("ce4c", "v1.13.6")),
            class: None,
            size: None,
            volume_mode: None,
            access_modes: &[],
        };
        change(&mut wanted);
        match adoption(&wanted, found) {
            Adoption::Adopt => Ok(()),
            Adoption::Refuse(why) => Err(why),
        }
    }

    #[rstest]
    #[case::same("vm-default-images-a", url(URL), false, Ok(()))]
    #[case::same_in_other_spelling("vm-default-images-a", url("https://E.example:443/noble.img?t=hunter2"), false, Ok(()))]
    #[case::other_url("vm-default-images-a", url("https://e.example/jammy.img"), false, Err("jammy.img"))]
    #[case::other_query("vm-default-images-a", url("https://e.example/noble.img?t=hunter3"), false, Err("another query"))]
    #[case::other_url_with_consent("vm-default-images-a", url("https://e.example/jammy.img"), true, Err("jammy.img"))]
    #[case::credentials("vm-default-images-a", url("https://u:hunter2@e.example/noble.img?t=hunter2"), false, Err("source"))]
    #[case::no_url_at_all("vm-default-images-a", url("://hunter2"), false, Err("cannot be read"))]
    #[case::clone("vm-default-images-a", Origin::Other("it is a clone of x/y".into()), true, Err("clone of x/y"))]
    #[case::unknown("vm-default-images-a", Origin::Unknown, false, Err("adopt: \"true\""))]
    #[case::unknown_with_consent("vm-default-images-a", Origin::Unknown, true, Ok(()))]
    #[case::talos_marks("talos-worker-ce4c-v1.13.6", talos("ce4c", "v1.13.6"), false, Ok(()))]
    #[case::other_talos_marks("talos-worker-ce4c-v1.13.6", talos("ce4c", "v1.13.5"), false, Err("v1.13.5"))]
    #[case::not_a_former_name("kairos-worker-a", url(URL), false, Err("adopt: \"true\""))]
    #[case::not_a_former_name_with_consent("kairos-worker-a", url(URL), true, Ok(()))]
    #[case::further_target_of_a_former_name("golden-a", Origin::Unknown, false, Err("does not say"))]
    fn r5_by_source(#[case] golden: &str, #[case] origin: Origin, #[case] consent: bool, #[case] expected: Result<(), &str>) {
        let found = judge(golden, &Stranger { consent, ..stranger(origin) }, |_| {});
        match (&found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(why), Err(part)) => assert!(why.contains(part) && !why.contains("hunter"), "{why}"),
            _ => panic!("{found:?}"),
        }
    }

    #[test]
    fn r5_by_what_the_target_asks_for() {
        let found = stranger(url(URL));
        let modes: &[String] = Box::leak(Box::new(["ReadWriteOnce".to_owned()]));
        let same: &[String] = Box::leak(Box::new(["ReadWriteMany".to_owned()]));
        let golden = "vm-default-images-a";
        assert_eq!(judge(golden, &found, |wanted| wanted.class = Some("replicated")), Ok(()));
        assert_eq!(judge(golden, &found, |wanted| wanted.size = Some("20480Mi".parse().expect("size"))), Ok(()));
        assert_eq!(judge(golden, &found, |wanted| wanted.access_modes = same), Ok(()));
        for (part, why) in [
            (
                "storageClassName: it has replicated, the target asks for local",
                judge(golden, &found, |wanted| wanted.class = Some("local")),
            ),
            (
                "size: it has 20Gi, the target asks for 10Gi",
                judge(golden, &found, |wanted| wanted.size = Some("10Gi".parse().expect("size"))),
            ),
            ("volumeMode: it has Block", judge(golden, &found, |wanted| wanted.volume_mode = Some("Filesystem"))),
            ("accessModes: it has ReadWriteMany", judge(golden, &found, |wanted| wanted.access_modes = modes)),
        ] {
            let why = why.expect_err(part);
            assert!(why.contains(part), "{why}");
        }
    }
}
