//! How large a claim must be to hold a disk, as CDI counts it (R16).

use std::collections::BTreeMap;

use super::{Reason, class::Shape};
use crate::model::DiskSize;

pub use crate::model::VolumeMode;

/// How much of a Filesystem volume the file system itself takes, from CDIConfig's status: fractions such as `0.06`.
#[derive(Debug, Clone, PartialEq)]
pub struct Overheads {
    /// For every class without an entry of its own.
    global: f64,
    /// By StorageClass.
    classes: BTreeMap<String, f64>,
}

impl Overheads {
    /// CDI's default.
    pub const DEFAULT: f64 = 0.06;

    /// The overheads as CDIConfig's status spells them. A text that is no fraction between 0 and 1 counts as unset, so that one odd value never makes a size absurd.
    pub fn parse<'a>(global: Option<&str>, classes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let fraction = |text: &str| text.trim().parse::<f64>().ok().filter(|fraction| (0.0..=1.0).contains(fraction));
        Self {
            global: global.and_then(fraction).unwrap_or(Self::DEFAULT),
            classes: classes.into_iter().filter_map(|(class, text)| Some((class.to_owned(), fraction(text)?))).collect(),
        }
    }

    /// The overhead of a volume of this class and mode; none for a bare device.
    pub fn of(&self, class: &str, mode: VolumeMode) -> f64 {
        match mode {
            VolumeMode::Block => 0.0,
            VolumeMode::Filesystem => self.classes.get(class).copied().unwrap_or(self.global),
        }
    }
}

impl Default for Overheads {
    fn default() -> Self {
        Self::parse(None, [])
    }
}

/// What a class makes of a size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Volume {
    /// Its mode.
    pub mode: VolumeMode,
    /// The share the file system takes, from [`Overheads::of`].
    pub overhead: f64,
    /// The StorageProfile's minimum (`cdi.kubevirt.io/minimumSupportedPvcSize`).
    pub minimum: Option<DiskSize>,
}

impl Volume {
    /// A volume of this class and mode.
    pub fn new(class: &str, mode: VolumeMode, overheads: &Overheads, minimum: Option<DiskSize>) -> Self {
        Self { mode, overhead: overheads.of(class, mode), minimum }
    }

    /// The claim that holds `bytes` of disk: rounded up to a mebibyte, with the file system's share on top, not below the class's minimum.
    ///
    /// The same arithmetic as CDI's `GetRequiredSpace` (pkg/util), in the same floating point, so that both reach the same number.
    pub fn claim_for(self, bytes: DiskSize) -> DiskSize {
        let aligned = bytes.round_up_to_mib();
        // Exact up to 2^53 bytes (8 PiB); CDI rounds in the same way beyond.
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "CDI's own arithmetic")]
        let with_overhead = (aligned.bytes() as f64 * (1.0 + self.overhead)).ceil() as u64;
        let claim = DiskSize::from_bytes(with_overhead.min(i64::MAX as u64)).unwrap_or(aligned);
        self.minimum.map_or(claim, |minimum| claim.max(minimum))
    }

    /// The smallest size to ask CDI for: the class's minimum on a device. Where a file system's share comes on top, CDI holds the class's
    /// minimum against the claim with that share in it, so a size that had the minimum in it already would be inflated twice.
    pub fn least(self) -> Option<DiskSize> {
        self.minimum.filter(|_| self.mode == VolumeMode::Block)
    }

    /// The smallest size to state so that a claim of at least `claim` is asked for: without what CDI puts on top of it.
    pub fn smallest_for(self, claim: DiskSize, shape: Shape) -> DiskSize {
        let plain = Self { minimum: None, ..self };
        let mib = |count: u64| count.max(1).checked_mul(DiskSize::MIB).and_then(DiskSize::from_bytes);
        if shape == Shape::Claim || self.mode == VolumeMode::Block {
            return claim;
        }
        // From half of the claim, since no share is larger than all of the disk. What is stated counts in whole mebibytes.
        let (mut low, mut high) = (claim.bytes() / DiskSize::MIB / 2, claim.bytes().div_ceil(DiskSize::MIB));
        while low < high {
            let middle = low.midpoint(high);
            match mib(middle).is_some_and(|size| plain.claim_for(size) >= claim) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        mib(high).unwrap_or(claim)
    }

    /// What CDI asks storage for when a disk states `size`: completed and inflated for `spec.storage`, as written for a claim.
    pub fn requested(self, size: DiskSize, shape: Shape) -> DiskSize {
        match shape {
            Shape::Claim => size,
            Shape::Storage if self.mode == VolumeMode::Filesystem => self.claim_for(size),
            Shape::Storage => self.minimum.map_or(size, |minimum| size.max(minimum)),
        }
    }
}

/// The size of a golden in one class: the given one if it holds the disk, else the disk's, in whole mebibytes and no less than the class makes.
///
/// It is what a guest can use: the file system's share is added by CDI, which is asked with `spec.storage` ([`Volume::requested`] says what it makes of it).
///
/// # Errors
/// When the given size is too small; the message names both sizes in one unit and the one to write.
pub fn golden_size(virtual_size: DiskSize, stated: Option<DiskSize>, minimum: Option<DiskSize>) -> Result<DiskSize, SizeTooSmall> {
    let needed = virtual_size.round_up_to_mib();
    match stated {
        None => Ok(minimum.map_or(needed, |minimum| needed.max(minimum.round_up_to_mib()))),
        Some(size) if size >= virtual_size => Ok(size),
        Some(stated) => Err(SizeTooSmall { stated, needed, virtual_size }),
    }
}

/// The size with which CDI copies a golden into another class: `wanted`, or what the copy needs more than that; `None` where a stated size is in the way.
///
/// CDI refuses a target whose claim is smaller than the source's, and, where the source is a device, one whose size before the file system's share is.
pub fn copy_size(wanted: DiskSize, is_stated: bool, volume: Volume, source: (VolumeMode, DiskSize)) -> Option<DiskSize> {
    let (mode, claim) = source;
    let fits = |size: DiskSize| volume.requested(size, Shape::Storage) >= claim && (mode == VolumeMode::Filesystem || size >= claim);
    if fits(wanted) {
        return Some(wanted);
    }
    (!is_stated).then(|| wanted.max(claim.round_up_to_mib()))
}

/// A target that cannot hold its image, known before a byte goes to storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct SizeTooSmall {
    /// The size the target states.
    pub stated: DiskSize,
    /// The size it needs.
    pub needed: DiskSize,
    /// The disk's virtual size.
    pub virtual_size: DiskSize,
}

impl SizeTooSmall {
    /// The reason to show.
    pub const fn reason(&self) -> Reason {
        Reason::SizeTooSmall
    }

    fn message(&self) -> String {
        let (stated, needed) = in_one_unit(self.stated, self.needed);
        let disk = self.virtual_size;
        format!("size {stated} is too small: a disk of {disk} needs {needed}; write `{}` or leave it empty", self.needed)
    }
}

/// Two sizes in the largest unit in which they can be told apart with at most two decimals: `5722.05Mi` and `6144Mi`.
pub fn in_one_unit(a: DiskSize, b: DiskSize) -> (String, String) {
    for (suffix, factor) in [("Ti", 1_u64 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)] {
        let show = |size: DiskSize| {
            let hundredths = u128::from(size.bytes()) * 100 / u128::from(factor);
            let (whole, rest) = (hundredths / 100, hundredths % 100);
            let text = if rest == 0 { format!("{whole}") } else { format!("{whole}.{rest:02}").trim_end_matches('0').to_owned() };
            (text + suffix, hundredths * u128::from(factor) == u128::from(size.bytes()) * 100, whole > 0)
        };
        let ((first, exact_a, some_a), (second, exact_b, some_b)) = (show(a), show(b));
        let exact = exact_a && exact_b || suffix == "Mi" && some_a && some_b && first != second;
        if some_a && some_b && exact && (first != second || a == b) {
            return (first, second);
        }
    }
    (a.bytes().to_string(), b.bytes().to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn size(text: &str) -> DiskSize {
        text.parse().expect(text)
    }

    #[rstest]
    #[case::block("4250Mi", VolumeMode::Block, None, "4250Mi")]
    #[case::rounded_up("4456448001", VolumeMode::Block, None, "4251Mi")]
    // ceil(1 GiB * 1.06), the number CDI writes on the claim.
    #[case::filesystem("1Gi", VolumeMode::Filesystem, None, "1138166334")]
    #[case::ten_gi("10Gi", VolumeMode::Filesystem, None, "11381663335")]
    #[case::minimum("1Gi", VolumeMode::Block, Some("4Gi"), "4Gi")]
    #[case::above_minimum("5Gi", VolumeMode::Block, Some("4Gi"), "5Gi")]
    fn a_claim_as_cdi_computes_it(#[case] disk: &str, #[case] mode: VolumeMode, #[case] minimum: Option<&str>, #[case] claim: &str) {
        let volume = Volume::new("any", mode, &Overheads::default(), minimum.map(size));
        assert_eq!(volume.claim_for(size(disk)), size(claim));
    }

    #[rstest]
    #[case::what_the_golden_stated(Shape::Storage, VolumeMode::Filesystem, "11381663335", "10Gi")]
    #[case::one_byte_more(Shape::Storage, VolumeMode::Filesystem, "11381663336", "10241Mi")]
    #[case::tiny(Shape::Storage, VolumeMode::Filesystem, "1", "1Mi")]
    #[case::a_device(Shape::Storage, VolumeMode::Block, "10Gi", "10Gi")]
    #[case::a_claim(Shape::Claim, VolumeMode::Filesystem, "11381663335", "11381663335")]
    fn the_smallest_size_that_makes_a_claim(#[case] shape: Shape, #[case] mode: VolumeMode, #[case] claim: &str, #[case] expected: &str) {
        let volume = Volume::new("any", mode, &Overheads::default(), Some(size("20Gi")));
        assert_eq!(volume.smallest_for(size(claim), shape), size(expected));
    }

    #[test]
    fn overheads_are_global_or_per_class_and_odd_ones_count_as_unset() {
        let overheads = Overheads::parse(Some("0.1"), [("a", "0.055"), ("b", "0"), ("c", "a lot"), ("d", "7"), ("e", "NaN"), ("f", "-1")]);
        let of = |class| overheads.of(class, VolumeMode::Filesystem);
        assert_eq!([of("a"), of("b"), of("c"), of("d"), of("e"), of("f"), of("other")], [0.055, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1]);
        assert_eq!(overheads.of("a", VolumeMode::Block), 0.0);
        assert_eq!(Overheads::parse(Some("many"), []), Overheads::default());
    }

    #[rstest]
    #[case::empty(None, None, Ok("4250Mi"))]
    #[case::minimum(None, Some("5Gi"), Ok("5Gi"))]
    #[case::odd_minimum(None, Some("6000000001"), Ok("5723Mi"))]
    #[case::below_the_minimum(None, Some("1Gi"), Ok("4250Mi"))]
    #[case::given_below_the_minimum(Some("4250Mi"), Some("5Gi"), Ok("4250Mi"))]
    #[case::equal_by_value(Some("4352000Ki"), None, Ok("4250Mi"))]
    #[case::larger(Some("6Gi"), None, Ok("6Gi"))]
    #[case::one_byte_short(Some("4456447999"), None, Err("size 4249.99Mi is too small: a disk of 4250Mi needs 4250Mi"))]
    #[case::too_small(Some("4249Mi"), None, Err("size 4249Mi is too small: a disk of 4250Mi needs 4250Mi; write `4250Mi`"))]
    #[case::decimal(Some("4G"), None, Err("size 3814.69Mi is too small: a disk of 4250Mi needs 4250Mi"))]
    fn a_goldens_size(#[case] stated: Option<&str>, #[case] minimum: Option<&str>, #[case] expected: Result<&str, &str>) {
        let result = golden_size(size("4250Mi"), stated.map(size), minimum.map(size));
        match expected {
            Ok(expected) => assert_eq!(result, Ok(size(expected))),
            Err(text) => {
                let error = result.expect_err("too small");
                assert!(error.to_string().contains(text), "{error}");
                assert_eq!(error.reason(), Reason::SizeTooSmall);
            }
        }
    }

    #[test]
    fn a_given_size_may_be_as_small_as_the_disk() {
        let odd = size("4456448001");
        assert_eq!(golden_size(odd, Some(odd), None), Ok(odd));
        assert_eq!(golden_size(odd, None, None), Ok(size("4251Mi")));
    }

    #[rstest]
    #[case::like_to_like("1Gi", false, VolumeMode::Block, (VolumeMode::Block, "1Gi"), Some("1Gi"))]
    #[case::larger_source("1Gi", false, VolumeMode::Block, (VolumeMode::Block, "4Gi"), Some("4Gi"))]
    #[case::stated_in_the_way("1Gi", true, VolumeMode::Block, (VolumeMode::Block, "4Gi"), None)]
    #[case::stated_and_enough("5Gi", true, VolumeMode::Block, (VolumeMode::Block, "4Gi"), Some("5Gi"))]
    // The source's claim has the file system's share in it already, and so will the target's.
    #[case::file_systems("1Gi", false, VolumeMode::Filesystem, (VolumeMode::Filesystem, "1138166334"), Some("1Gi"))]
    #[case::to_a_device("1Gi", false, VolumeMode::Block, (VolumeMode::Filesystem, "1138166334"), Some("1086Mi"))]
    // A device is compared before the share is added.
    #[case::from_a_device("1000Mi", false, VolumeMode::Filesystem, (VolumeMode::Block, "1Gi"), Some("1Gi"))]
    fn a_copys_size(
        #[case] wanted: &str,
        #[case] is_stated: bool,
        #[case] mode: VolumeMode,
        #[case] source: (VolumeMode, &str),
        #[case] expected: Option<&str>,
    ) {
        let volume = Volume::new("any", mode, &Overheads::default(), None);
        assert_eq!(copy_size(size(wanted), is_stated, volume, (source.0, size(source.1))), expected.map(size));
    }

    #[rstest]
    #[case(Shape::Claim, VolumeMode::Filesystem, "1Gi")]
    #[case(Shape::Storage, VolumeMode::Filesystem, "1138166334")]
    #[case(Shape::Storage, VolumeMode::Block, "1Gi")]
    fn only_cdi_completes_a_size(#[case] shape: Shape, #[case] mode: VolumeMode, #[case] expected: &str) {
        let volume = Volume::new("any", mode, &Overheads::default(), None);
        assert_eq!(volume.requested(size("1Gi"), shape), size(expected));
    }

    #[rstest]
    #[case("6G", "6Gi", "5722.04Mi", "6144Mi")]
    #[case("5Gi", "20Gi", "5Gi", "20Gi")]
    #[case("6144Mi", "6Gi", "6Gi", "6Gi")]
    #[case("1536Mi", "2Gi", "1.5Gi", "2Gi")]
    #[case("512Mi", "2Gi", "512Mi", "2048Mi")]
    #[case("6442450943", "6442450944", "6143.99Mi", "6144Mi")]
    #[case("1", "2", "1", "2")]
    fn both_in_one_unit(#[case] a: &str, #[case] b: &str, #[case] first: &str, #[case] second: &str) {
        assert_eq!(in_one_unit(size(a), size(b)), (first.to_owned(), second.to_owned()));
    }

    proptest! {
        #[test]
        fn what_is_computed_always_holds_the_disk(bytes in 1..=1_u64 << 52, thousandths in 0..=1000_u32) {
            let disk = DiskSize::from_bytes(bytes).expect("in range");
            let volume = Volume { mode: VolumeMode::Filesystem, overhead: f64::from(thousandths) / 1000.0, minimum: None };
            let size = golden_size(disk, None, None).expect("computed");
            prop_assert!(size >= disk && size.bytes().is_multiple_of(DiskSize::MIB));
            prop_assert_eq!(golden_size(disk, Some(size), None), Ok(size));
            prop_assert!(volume.requested(size, Shape::Storage) >= size);
        }

        #[test]
        fn the_smallest_is_enough_and_a_mebibyte_less_is_not(bytes in 1..=1_u64 << 52, thousandths in 0..=1000_u32) {
            let claim = DiskSize::from_bytes(bytes).expect("in range");
            let volume = Volume { mode: VolumeMode::Filesystem, overhead: f64::from(thousandths) / 1000.0, minimum: None };
            let smallest = volume.smallest_for(claim, Shape::Storage);
            prop_assert!(volume.requested(smallest, Shape::Storage) >= claim);
            if let Some(less) = smallest.bytes().checked_sub(DiskSize::MIB).and_then(DiskSize::from_bytes) {
                prop_assert!(volume.requested(less, Shape::Storage) < claim);
            }
        }

        #[test]
        fn different_sizes_never_look_alike(a in 1..=1_u64 << 50, b in 1..=1_u64 << 50) {
            let [first, second] = [a, b].map(|bytes| DiskSize::from_bytes(bytes).expect("in range"));
            let (x, y) = in_one_unit(first, second);
            prop_assert_eq!(x == y, a == b);
        }
    }
}
