//! Disk images made by the real tools (qemu-img, sgdisk, sfdisk, mkfs, xz, zstd, gzip), taken in by the artifact room, and
//! judged again by qemu-img. Runs anywhere; what a missing optional tool would make is skipped, and said so.

#[allow(dead_code, reason = "the benchmark and the fuzz target use more of it")]
#[path = "formats/lab.rs"]
mod lab;
#[path = "formats/packed.rs"]
mod packed;
#[path = "formats/qcow2.rs"]
mod qcow2;
#[path = "formats/raw.rs"]
mod raw;
#[path = "formats/refused.rs"]
mod refused;
#[path = "formats/volume.rs"]
mod volume;
