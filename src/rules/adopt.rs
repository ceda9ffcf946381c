//! R5: what already stands under a golden's name, and whether the catalog takes it over.
//!
//! Adoption writes metadata and nothing else, so it is decided by what can be read: where the volume's content came from, and
//! whether its claim is what the image's target asks for. What cannot be read is never guessed.

use url::Url;

use super::provenance::{Consent, Provenance, brought_back_message, consent_wanted};
use crate::model::{DiskSize, HttpUrl, public_url, redact};

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
    /// Our own mark, for the very image that asks, under a name that the image had before.
    ThisImage,
    /// Something that no image of the catalog comes from, in words.
    Other(String),
    /// Nothing says.
    Unknown,
}

/// A volume of a golden's name that does not carry the mark of the image that asks.
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
    /// The claim's UID, where there is a claim.
    pub uid: Option<String>,
    /// Whether it carries our mark, for whichever image.
    pub is_marked: bool,
    /// What the annotation that asks for adoption says.
    pub consent: Consent,
    /// Whether it was filled here. Without a claim there is nothing to ask about.
    pub provenance: Provenance,
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
    /// A restore brought it back (R7): left alone until a person says that this very volume is meant.
    BroughtBack(String),
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
        Origin::ThisImage => true,
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
    let needs_no_word = found.origin == Origin::ThisImage || FORMER.iter().any(|prefix| wanted.golden.starts_with(prefix));
    let uid = found.uid.as_deref();
    match (&found.provenance, found.consent, uid) {
        (_, Consent::OfThisClaim, _) => return Adoption::Adopt,
        (Provenance::BroughtBack(why), _, Some(uid)) => return Adoption::BroughtBack(brought_back_message(wanted.golden, uid, why)),
        // What carries our mark was taken over once, and the word with it.
        (_, Consent::OfTheName, _) if !found.is_marked => return Adoption::Adopt,
        (Provenance::FilledHere, ..) if known && needs_no_word => return Adoption::Adopt,
        _ => {}
    }
    let why = match (known, &found.provenance) {
        (false, _) => "does not say where its content came from",
        (true, Provenance::FilledHere) => "has the same source and was not made by the catalog",
        (true, _) => "has the same source, and nothing says that it was filled in this cluster",
    };
    let then = uid.map_or_else(|| "it is taken over as it is when its PVC is there and says so".to_owned(), consent_wanted);
    Adoption::Refuse(format!("{} exists in the catalog namespace and {why}: if it holds this image's disk, {then}", wanted.golden))
}

/// A URL as a message may repeat it: a path of the spool is as good as a key.
fn shown(url: &str) -> String {
    Url::parse(url).map_or_else(|_| "a URL that cannot be read".to_owned(), |url| redact(&public_url(&url)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Adoption, Consent, Origin, Provenance, Stranger, Wanted, adoption};

    const URL: &str = "https://e.example/noble.img?t=hunter2";

    fn stranger(origin: Origin) -> Stranger {
        Stranger {
            origin,
            class: Some("replicated".into()),
            size: Some("20Gi".parse().expect("size")),
            volume_mode: Some("Block".into()),
            access_modes: vec!["ReadWriteMany".into()],
            uid: Some("own".into()),
            is_marked: false,
            consent: Consent::No,
            provenance: Provenance::FilledHere,
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
            Adoption::Refuse(why) | Adoption::BroughtBack(why) => Err(why),
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
    #[case::ours_of_another_image(
        "talos-worker-ce4c-v1.13.6",
        url("https://spool.example.svc:8443/v1/disks/golden/hunter2.qcow2"),
        false,
        Err("source")
    )]
    #[case::this_image("talos-worker-ce4c-v1.13.6", Origin::ThisImage, false, Ok(()))]
    #[case::this_image_of_any_name("kairos-worker-a", Origin::ThisImage, false, Ok(()))]
    #[case::clone("vm-default-images-a", Origin::Other("it is a clone of x/y".into()), true, Err("clone of x/y"))]
    #[case::unknown("vm-default-images-a", Origin::Unknown, false, Err("adopt: own`"))]
    #[case::unknown_with_consent("vm-default-images-a", Origin::Unknown, true, Ok(()))]
    #[case::talos_marks("talos-worker-ce4c-v1.13.6", talos("ce4c", "v1.13.6"), false, Ok(()))]
    #[case::other_talos_marks("talos-worker-ce4c-v1.13.6", talos("ce4c", "v1.13.5"), false, Err("v1.13.5"))]
    #[case::not_a_former_name("kairos-worker-a", url(URL), false, Err("adopt: own`"))]
    #[case::not_a_former_name_with_consent("kairos-worker-a", url(URL), true, Ok(()))]
    #[case::further_target_of_a_former_name("golden-a", Origin::Unknown, false, Err("does not say"))]
    fn r5_by_source(#[case] golden: &str, #[case] origin: Origin, #[case] consent: bool, #[case] expected: Result<(), &str>) {
        let consent = if consent { Consent::OfTheName } else { Consent::No };
        let found = judge(golden, &Stranger { consent, ..stranger(origin) }, |_| {});
        match (&found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(why), Err(part)) => assert!(why.contains(part) && !why.contains("hunter"), "{why}"),
            _ => panic!("{found:?}"),
        }
    }

    /// The same source; what is asked is whether this volume was filled here.
    #[rstest]
    #[case::filled_here(Provenance::FilledHere, Consent::No, false, Ok(()))]
    #[case::alone(Provenance::Unsaid, Consent::No, false, Err("nothing says that it was filled"))]
    #[case::alone_with_the_word(Provenance::Unsaid, Consent::OfTheName, false, Ok(()))]
    #[case::alone_with_its_uid(Provenance::Unsaid, Consent::OfThisClaim, false, Ok(()))]
    #[case::alone_and_taken_over_once(Provenance::Unsaid, Consent::OfTheName, true, Err("adopt: own`"))]
    #[case::restored(Provenance::BroughtBack("how".into()), Consent::No, false, Err("brought back by a restore (how)"))]
    #[case::restored_with_the_word_it_had(Provenance::BroughtBack("how".into()), Consent::OfTheName, false, Err("adopt: own`"))]
    #[case::restored_with_its_uid(Provenance::BroughtBack("how".into()), Consent::OfThisClaim, false, Ok(()))]
    #[case::this_image_restored(Provenance::BroughtBack("how".into()), Consent::OfTheName, true, Err("how"))]
    #[case::restored_after_it_was_taken_over(Provenance::BroughtBack("how".into()), Consent::OfTheName, true, Err("how"))]
    fn r7_by_where_it_was_filled(
        #[case] provenance: Provenance,
        #[case] consent: Consent,
        #[case] is_marked: bool,
        #[case] expected: Result<(), &str>,
    ) {
        let is_back = matches!(provenance, Provenance::BroughtBack(_));
        let found = Stranger { provenance, consent, is_marked, ..stranger(url(URL)) };
        match (judge("vm-default-images-a", &found, |_| {}), expected) {
            (Ok(()), Ok(())) => {}
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (found, _) => panic!("{found:?}"),
        }
        // Another image is another image, whoever consents.
        let other = judge("vm-default-images-a", &Stranger { origin: url("https://e.example/jammy.img"), ..found }, |_| {});
        assert!(other.is_err_and(|why| why.contains("jammy.img")), "{is_back}");
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
