//! A Bloom filter for each era, sixty-four of them side by side: a word has one bit of each, so that a key is looked
//! for in all of them with as many words as one of them takes. A filter may say that an era has a key which it has not;
//! never the other way round, as long as what was noted is only ever added to.

use std::collections::BTreeMap;

use sprag_kernel::keys::Hash;

/// Bits of a filter for each key of a full era. With as many places of a key as there are, one look in 8,000 at an era
/// without it is in vain.
const BITS: usize = 24;
const PLACES: usize = 6;
/// How many filters are side by side.
const SIDE: i64 = 64;

/// Where a key is noted, of 2^32 places.
#[derive(Clone, Copy)]
pub(super) struct Mark([u32; PLACES]);

impl Mark {
    /// Files hold filters: what this is for a key must never change.
    pub(super) fn of(tenant_id: &[u8], dedup_key: &[u8]) -> Self {
        let hash = Hash::of(&[dedup_key, b"\0", tenant_id].concat());
        let mut words = hash.as_bytes().chunks_exact(4);
        Self(std::array::from_fn(|_| {
            let word = words.next().expect("a hash has eight words");
            u32::from_le_bytes(word.try_into().expect("a word has four bytes"))
        }))
    }
}

/// The filters of all eras.
pub(super) struct Filters {
    /// How many bits each has.
    bits: usize,
    /// Those of the eras from 64 n by n, a word for each bit of a filter.
    sides: BTreeMap<i64, Vec<u64>>,
}

impl Filters {
    /// None yet; each will be for so many keys.
    pub(super) fn of(keys: usize) -> Self {
        Self { bits: keys * BITS, sides: BTreeMap::new() }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.sides.clear();
    }

    /// Notes a key of an era.
    pub(super) fn add(&mut self, era: i64, mark: Mark) {
        let (side, bit) = self.side(era);
        for place in mark.0 {
            let at = at(side.len(), place);
            side[at] |= bit;
        }
    }

    /// The eras that may have a key.
    pub(super) fn may_have(&self, mark: Mark) -> Vec<i64> {
        let mut eras = Vec::new();
        for (n, side) in &self.sides {
            let noted = |place| side[at(side.len(), place)];
            let mut found = mark.0.into_iter().map(noted).fold(u64::MAX, |all, word| all & word);
            while found > 0 {
                eras.push(n * SIDE + i64::from(found.trailing_zeros()));
                found &= found - 1;
            }
        }
        eras
    }

    /// The filter of an era, as a file holds it.
    pub(super) fn packed(&mut self, era: i64) -> Vec<u8> {
        let (side, bit) = self.side(era);
        let eight = |words: &[u64]| {
            let bits = words.iter().enumerate();
            bits.fold(0, |byte, (n, word)| byte | (u8::from(word & bit > 0) << n))
        };
        side.chunks(8).map(eight).collect()
    }

    /// Adds what a file holds; says whether it is a filter of this kind.
    pub(super) fn unpack(&mut self, era: i64, packed: &[u8]) -> bool {
        if packed.len() != bytes(self.bits) {
            return false;
        }
        let (side, bit) = self.side(era);
        for (words, byte) in side.chunks_mut(8).zip(packed) {
            for (n, word) in words.iter_mut().enumerate() {
                *word |= bit * u64::from((byte >> n) & 1);
            }
        }
        true
    }

    /// Where an era has its bits, and which they are.
    fn side(&mut self, era: i64) -> (&mut [u64], u64) {
        let side = self.sides.entry(era.div_euclid(SIDE)).or_insert_with(|| vec![0; self.bits]);
        (side, 1 << era.rem_euclid(SIDE))
    }
}

/// Whether what a file holds is a filter for so many keys.
pub(super) fn is_of_kind(packed: &[u8], keys: usize) -> bool {
    packed.len() == bytes(keys * BITS)
}

/// Whether a filter, as a file holds it, may have a key.
pub(super) fn may_have(packed: &[u8], mark: Mark) -> bool {
    mark.0.into_iter().all(|place| {
        let at = at(packed.len() * 8, place);
        (packed[at / 8] >> (at % 8)) & 1 == 1
    })
}

/// How many bytes of a file so many bits take.
fn bytes(bits: usize) -> usize {
    bits.div_ceil(8)
}

/// Which of so many words is this place's.
fn at(words: usize, place: u32) -> usize {
    ((u64::from(place) * words as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u32 = 4_096;
    const ERAS: i64 = 70;

    fn mark(n: u32) -> Mark {
        Mark::of(b"t1", format!("k:{n}").as_bytes())
    }

    /// So many eras, one key after the other in each.
    fn full() -> Filters {
        let mut filters = Filters::of(KEYS as usize);
        for (n, era) in (0..KEYS * 3).zip((0..ERAS).cycle()) {
            filters.add(era, mark(n));
        }
        filters
    }

    #[test]
    fn what_was_added_is_found_in_its_era() {
        let filters = full();
        for (n, era) in (0..KEYS * 3).zip((0..ERAS).cycle()) {
            assert!(filters.may_have(mark(n)).contains(&era), "{n}");
        }
    }

    #[test]
    fn a_full_era_is_looked_up_in_vain_once_in_thousands() {
        let mut filters = Filters::of(KEYS as usize);
        for n in 0..KEYS {
            filters.add(7, mark(n));
        }
        let looks = 200_000;
        let in_vain = (KEYS..KEYS + looks).filter(|n| !filters.may_have(mark(*n)).is_empty());
        let in_vain = in_vain.count();
        assert!((1..60).contains(&in_vain), "{in_vain} of {looks}");
    }

    #[test]
    fn a_filter_is_what_it_was_when_a_file_has_held_it() {
        let (mut filters, mut read) = (full(), Filters::of(KEYS as usize));
        for era in 0..ERAS {
            assert!(read.unpack(era, &filters.packed(era)));
        }
        assert!(read.sides == filters.sides);
        assert!(!read.unpack(0, &[0; 16]), "a filter of another kind");
        read.clear();
        assert!(read.may_have(mark(0)).is_empty());
    }

    /// Files were written with these.
    #[test]
    fn the_mark_of_a_key_never_changes() {
        let places = [0xfc82_575c, 0x365a_a3cd, 0x2794_804e, 0xb707_7448, 0xeb6f_9ca0, 0x60f1_d636];
        assert_eq!(Mark::of(b"tenant", b"k:key").0, places);
        let mut filters = Filters::of(4);
        filters.add(3, Mark::of(b"tenant", b"k:key"));
        let packed = [0, 64, 16, 0, 16, 0, 0, 0, 16, 0, 0, 65];
        assert_eq!(filters.packed(3), packed);
        assert!(is_of_kind(&packed, 4) && !is_of_kind(&packed, 8));
        assert!(may_have(&packed, Mark::of(b"tenant", b"k:key")));
        assert!(!may_have(&packed, Mark::of(b"tenant", b"k:other")));
    }
}
