//! Whole numbers in as few bytes as they need: seven bits a byte, low bits first.

/// Appends `value`.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

/// Takes bytes and numbers off the front of a record's body; `None` once it is short or malformed.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub(super) fn narrow(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Whether nothing is left but the zeros that round a record up.
    pub(super) fn only_padding(&self, alignment: usize) -> bool {
        self.rest.len() < alignment && self.rest.iter().all(|&byte| byte == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_survives_the_round_trip() {
        for value in (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1]) {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(Reader::new(&out).number(), Some(value));
            assert_eq!(Reader::new(&out[..out.len() - 1]).number(), None);
        }
    }

    #[test]
    fn a_number_beyond_sixty_four_bits_is_refused() {
        assert_eq!(Reader::new(&[0xff; 9]).number(), None);
        let mut eleven = [0x80; 11];
        eleven[10] = 1;
        assert_eq!(Reader::new(&eleven).number(), None);
        let mut beyond = [0xff; 10];
        beyond[9] = 2;
        assert_eq!(Reader::new(&beyond).number(), None);
    }
}
