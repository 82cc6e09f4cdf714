//! Paths of branches: one number for all fan-outs around a row.
//!
//! A branch is `outer << 20 | (index + 1)`, 0 outside of any fan-out. So the branch around a branch and the
//! index in a fan-out are shifts and masks, and a path fits a signed integer of a store three fan-outs deep.

/// Bits of one level of a path.
const BITS: u32 = 20;

/// A turn beyond all others: a look at it finds the last one there is. Stores keep signed integers.
pub const LAST_TURN: u32 = i32::MAX.cast_unsigned();

/// The branch with this index inside `outer`.
pub fn branch(outer: u64, index: u32) -> u64 {
    debug_assert!(index < (1 << BITS) - 1, "a fan-out has fewer items than a level has numbers");
    outer << BITS | u64::from(index + 1)
}

/// The branch around this one, so many levels up.
pub fn around(branch: u64, levels: u32) -> u64 {
    branch >> (BITS * levels)
}

/// The index of a branch in its fan-out; none outside of one.
pub fn index(branch: u64) -> Option<u32> {
    let last = branch & ((1 << BITS) - 1);
    u32::try_from(last).ok()?.checked_sub(1)
}

/// A path as people read it: `3/0` is the first branch inside the fourth.
pub fn show(branch: u64) -> String {
    let mut levels = Vec::new();
    let mut rest = branch;
    while let Some(index) = index(rest) {
        levels.push(index.to_string());
        rest = around(rest, 1);
    }
    levels.reverse();
    levels.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_branches_is_taken_apart_as_it_was_put_together() {
        let deepest = branch(branch(branch(0, 999_999), 0), 41);
        assert!(i64::try_from(deepest).is_ok(), "stores keep signed integers");
        assert_eq!((index(deepest), index(0)), (Some(41), None));
        assert_eq!(index(around(deepest, 2)), Some(999_999));
        assert_eq!(around(deepest, 3), 0);
        assert_eq!(show(deepest), "999999/0/41");
        assert_eq!(show(0), "");
    }
}
