//! The address guard: which addresses the daemon may connect to.
//!
//! An upstream can point anywhere: by a redirect, by a DNS answer, by the realm of a token service. Hosts that the hoster
//! wrote may be private; hosts that an upstream led to may not, unless a setting allows it; what only this node or its cloud
//! answers on is never asked.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Who named the host that is to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// The hoster: a URL, factory, registry, mirror or proxy of the values or settings.
    Written,
    /// An upstream: a redirect or a token realm.
    Led,
}

/// What kind of place an address is, as far as egress cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    /// Reachable from the Internet, as far as the address tells.
    Public,
    /// RFC 1918, RFC 6598 (100.64/10), RFC 2544 (198.18/15), RFC 4193 (fc00::/7), RFC 3879 (fec0::/10).
    Private,
    /// This host: 127/8, ::1.
    Loopback,
    /// This link: 169.254/16, fe80::/10. Most clouds answer for metadata there.
    LinkLocal,
    /// A cloud's metadata or host service outside of the link-local ranges.
    Metadata,
    /// 0/8 and ::, which many systems connect to themselves.
    Unspecified,
    /// 224/4, ff00::/8 and the broadcast address.
    Multicast,
    /// Ranges no server of the hoster can be in: 192.0.0/24, 240/4, 100::/64.
    Reserved,
    /// Tunnels that carry an IPv4 address inside an IPv6 one and that nobody serves from: 6to4, Teredo, IPv4-compatible.
    Tunnel,
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "a public address",
            Self::Private => "a private address",
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a cloud metadata address",
            Self::Unspecified => "the unspecified address",
            Self::Multicast => "a multicast address",
            Self::Reserved => "a reserved address",
            Self::Tunnel => "an address inside an IPv6 tunnel",
        })
    }
}

/// Metadata and host services outside of the link-local ranges, each a fixed address or block of its cloud:
/// Alibaba 100.100.100.200, Azure's wire server 168.63.129.16, Oracle 192.0.0.192 (in 192.0.0/24, reserved below).
const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16)];

/// AWS serves instance metadata on fd00:ec2::254, time on ::123, DNS on ::253 and EKS pod identity on ::23: the whole fd00:ec2::/32.
const AWS_V6: [u16; 2] = [0xfd00, 0x0ec2];

/// Oracle (fd00:c1::a9fe:a9fe), Google (fd20:ce::254) and Scaleway (fd00:42::42).
const METADATA_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

/// The class of `address`. An IPv4 address inside an IPv6 one (v4-mapped, NAT64, ISATAP) is judged by the IPv4 address, since
/// that is where the packets end.
pub fn classify(address: IpAddr) -> AddressClass {
    match address {
        IpAddr::V4(v4) => classify_v4(v4),
        IpAddr::V6(v6) => classify_v6(v6),
    }
}

fn classify_v4(v4: Ipv4Addr) -> AddressClass {
    let [a, b, c, _] = v4.octets();
    match (a, b, c) {
        _ if METADATA_V4.contains(&v4) => AddressClass::Metadata,
        (0, ..) => AddressClass::Unspecified,
        (127, ..) => AddressClass::Loopback,
        (169, 254, _) => AddressClass::LinkLocal,
        (10, ..) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) | (198, 18..=19, _) => AddressClass::Private,
        (192, 0, 0) => AddressClass::Reserved,
        (224..=239, ..) | (255, 255, 255) => AddressClass::Multicast,
        (240.., ..) => AddressClass::Reserved,
        _ => AddressClass::Public,
    }
}

fn classify_v6(v6: Ipv6Addr) -> AddressClass {
    let s = v6.segments();
    let v4_at = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        classify_v4(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        _ if v6.is_unspecified() => AddressClass::Unspecified,
        _ if v6.is_loopback() => AddressClass::Loopback,
        _ if METADATA_V6.contains(&v6) || s[..2] == AWS_V6 => AddressClass::Metadata,
        // IPv4-mapped (RFC 4291): the kernel speaks IPv4 to it.
        [0, 0, 0, 0, 0, 0xffff, high, low] => v4_at(high, low),
        // IPv4-translated (RFC 2765) and IPv4-compatible (RFC 4291, deprecated).
        [0, 0, 0, 0, 0xffff, 0, ..] | [0, 0, 0, 0, 0, 0, ..] => AddressClass::Tunnel,
        // NAT64 (RFC 6052): with DNS64 every IPv4 host of the world looks like this.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => strictest(v4_at(high, low), AddressClass::Public),
        // Local NAT64 (RFC 8215): the prefix length is the network's choice, so both common places are judged.
        [0x64, 0xff9b, 1, embedded, middle, _, high, low] => {
            let [_, third] = middle.to_be_bytes();
            let [fourth, _] = s[5].to_be_bytes();
            // The other place is zero, which is then no address.
            let v4_or_none = |high, low| if (high, low) == (0, 0) { AddressClass::Private } else { v4_at(high, low) };
            let at_48 = v4_or_none(embedded, u16::from_be_bytes([third, fourth]));
            strictest(strictest(v4_or_none(high, low), at_48), AddressClass::Private)
        }
        // Teredo (RFC 4380) and 6to4 (RFC 3056, withdrawn by RFC 7526).
        [0x2001, 0, ..] | [0x2002, ..] => AddressClass::Tunnel,
        [0x100, 0, 0, 0, ..] => AddressClass::Reserved,
        [first, ..] => {
            let own = match first {
                0xfe80..=0xfebf => AddressClass::LinkLocal,
                0xff00.. => AddressClass::Multicast,
                0xfc00..=0xfdff | 0xfec0..=0xfeff => AddressClass::Private,
                _ => AddressClass::Public,
            };
            // ISATAP (RFC 5214): `::0:5efe:a.b.c.d` or `::200:5efe:a.b.c.d` under any prefix.
            if matches!(s[4], 0 | 0x200) && s[5] == 0x5efe { strictest(own, v4_at(s[6], s[7])) } else { own }
        }
    }
}

/// The stricter of two classes; an embedded loopback is not this host's own, so the setting for tests does not open it.
fn strictest(a: AddressClass, b: AddressClass) -> AddressClass {
    let rank = |class| match class {
        AddressClass::Public => 0,
        AddressClass::Private => 1,
        AddressClass::Loopback => 2,
        _ => 3,
    };
    match if rank(a) >= rank(b) { a } else { b } {
        AddressClass::Loopback => AddressClass::Tunnel,
        class => class,
    }
}

/// Whether a connection to `address` is allowed; the class is what a refusal is explained with.
pub fn judge(address: IpAddr, trust: Trust, allow_loopback: bool, allow_private_redirects: bool) -> Result<(), AddressClass> {
    let class = classify(address);
    let private_ok = trust == Trust::Written || allow_private_redirects;
    match class {
        AddressClass::Public => Ok(()),
        AddressClass::Private if private_ok => Ok(()),
        AddressClass::Loopback if allow_loopback && private_ok => Ok(()),
        class => Err(class),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::{AddressClass, Trust, classify, judge};

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[rstest]
    #[case("8.8.8.8", AddressClass::Public)]
    #[case("100.63.255.255", AddressClass::Public)]
    #[case("100.128.0.0", AddressClass::Public)]
    #[case("172.15.0.1", AddressClass::Public)]
    #[case("172.32.0.1", AddressClass::Public)]
    #[case("192.0.1.1", AddressClass::Public)]
    #[case("2606:4700::1111", AddressClass::Public)]
    #[case("10.0.0.1", AddressClass::Private)]
    #[case("172.16.0.1", AddressClass::Private)]
    #[case("172.31.255.255", AddressClass::Private)]
    #[case("192.168.0.1", AddressClass::Private)]
    #[case("100.64.0.1", AddressClass::Private)]
    #[case("198.19.0.1", AddressClass::Private)]
    #[case("fd12:3456::1", AddressClass::Private)]
    #[case("fec0::1", AddressClass::Private)]
    #[case("127.0.0.1", AddressClass::Loopback)]
    #[case("127.255.255.254", AddressClass::Loopback)]
    #[case("::1", AddressClass::Loopback)]
    #[case("::ffff:127.0.0.1", AddressClass::Loopback)]
    #[case("169.254.169.254", AddressClass::LinkLocal)]
    #[case("169.254.170.23", AddressClass::LinkLocal)]
    #[case("fe80::1", AddressClass::LinkLocal)]
    #[case("::ffff:169.254.169.254", AddressClass::LinkLocal)]
    #[case("100.100.100.200", AddressClass::Metadata)]
    #[case("168.63.129.16", AddressClass::Metadata)]
    #[case("fd00:ec2::254", AddressClass::Metadata)]
    #[case("fd00:ec2::23", AddressClass::Metadata)]
    #[case("fd20:ce::254", AddressClass::Metadata)]
    #[case("fd00:42::42", AddressClass::Metadata)]
    #[case("fd00:c1::a9fe:a9fe", AddressClass::Metadata)]
    #[case("192.0.0.192", AddressClass::Reserved)]
    #[case("0.0.0.0", AddressClass::Unspecified)]
    #[case("0.1.2.3", AddressClass::Unspecified)]
    #[case("::", AddressClass::Unspecified)]
    #[case("224.0.0.1", AddressClass::Multicast)]
    #[case("255.255.255.255", AddressClass::Multicast)]
    #[case("ff02::1", AddressClass::Multicast)]
    #[case("240.0.0.1", AddressClass::Reserved)]
    #[case("100::1", AddressClass::Reserved)]
    #[case("64:ff9b::8.8.8.8", AddressClass::Public)]
    #[case("64:ff9b::10.0.0.1", AddressClass::Private)]
    #[case("64:ff9b::127.0.0.1", AddressClass::Tunnel)]
    #[case("64:ff9b::169.254.169.254", AddressClass::LinkLocal)]
    #[case("64:ff9b:1::8.8.8.8", AddressClass::Private)]
    #[case("64:ff9b:1::169.254.169.254", AddressClass::LinkLocal)]
    #[case("64:ff9b:1:808:8:800::", AddressClass::Private)]
    #[case("64:ff9b:1:a9fe:a9:fe00::", AddressClass::LinkLocal)]
    #[case("64:ff9b:1:7f00:0:100::", AddressClass::Tunnel)]
    #[case("2002:7f00:1::", AddressClass::Tunnel)]
    #[case("2002:a9fe:a9fe::1", AddressClass::Tunnel)]
    #[case("2001:0:4136:e378:8000:63bf:3fff:fdd2", AddressClass::Tunnel)]
    #[case("::127.0.0.1", AddressClass::Tunnel)]
    #[case("::ffff:0:127.0.0.1", AddressClass::Tunnel)]
    #[case("2001:db8::5efe:169.254.169.254", AddressClass::LinkLocal)]
    #[case("2001:db8::200:5efe:127.0.0.1", AddressClass::Tunnel)]
    #[case("2001:db8::5efe:8.8.8.8", AddressClass::Public)]
    fn classes(#[case] text: &str, #[case] class: AddressClass) {
        assert_eq!(classify(ip(text)), class);
    }

    #[rstest]
    #[case("8.8.8.8", Trust::Led, false, false, true)]
    #[case("10.0.0.1", Trust::Written, false, false, true)]
    #[case("10.0.0.1", Trust::Led, false, false, false)]
    #[case("10.0.0.1", Trust::Led, true, false, false)]
    #[case("10.0.0.1", Trust::Led, false, true, true)]
    #[case("fd12::1", Trust::Led, false, false, false)]
    #[case("127.0.0.1", Trust::Written, false, false, false)]
    #[case("127.0.0.1", Trust::Written, false, true, false)]
    #[case("127.0.0.1", Trust::Written, true, false, true)]
    #[case("127.0.0.1", Trust::Led, true, false, false)]
    #[case("127.0.0.1", Trust::Led, true, true, true)]
    #[case("169.254.169.254", Trust::Written, true, true, false)]
    #[case("fd00:ec2::254", Trust::Written, true, true, false)]
    #[case("0.0.0.0", Trust::Written, true, true, false)]
    #[case("::ffff:169.254.169.254", Trust::Written, true, true, false)]
    #[case("64:ff9b::127.0.0.1", Trust::Written, true, true, false)]
    #[case("2002:7f00:1::", Trust::Written, true, true, false)]
    fn judgement(#[case] text: &str, #[case] trust: Trust, #[case] loopback: bool, #[case] private: bool, #[case] allowed: bool) {
        assert_eq!(judge(ip(text), trust, loopback, private).is_ok(), allowed, "{text}");
    }

    proptest! {
        /// However an IPv4 address is wrapped, the wrapping never opens what the address itself is refused for.
        #[test]
        fn wrapping_opens_nothing(v4: u32) {
            let v4 = std::net::Ipv4Addr::from(v4);
            let plain = judge(v4.into(), Trust::Led, false, false).is_ok();
            for wrapped in [format!("::ffff:{v4}"), format!("64:ff9b::{v4}"), format!("2001:db8::5efe:{v4}")] {
                prop_assert_eq!(judge(ip(&wrapped), Trust::Led, false, false).is_ok(), plain, "{}", wrapped);
            }
        }
    }
}
