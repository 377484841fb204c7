//! Columns of numbers: a base that is common to all items and an offset for each.

use crate::limits::ITEMS_MAX;
use crate::malformed::Malformed;
use crate::proto as wire;

use quota_core::id::KeyNumber;

/// The column of `of` over `items`. Items without a value take the base, so that they cost one
/// byte at most and do not widen the others.
pub(super) fn encode<T>(items: &[T], of: impl Fn(&T) -> Option<u64>) -> Option<wire::Column> {
    let (base, top) =
        items
            .iter()
            .filter_map(&of)
            .fold(None, |range: Option<(u64, u64)>, value| {
                let (least, most) = range.unwrap_or((value, value));
                Some((least.min(value), most.max(value)))
            })?;
    let offsets = if base == top {
        Vec::new()
    } else {
        items
            .iter()
            .map(|item| of(item).map_or(0, |value| value - base))
            .collect()
    };
    (base > 0 || top > 0).then_some(wire::Column { base, offsets })
}

/// A column whose length and sums have been checked.
pub(super) struct Column<'a> {
    path: &'static str,
    base: u64,
    offsets: &'a [u64],
}

impl<'a> Column<'a> {
    /// Checks that `column` has a number for each of `items` items. `path` names it in errors.
    pub(super) fn decode(
        path: &'static str,
        column: Option<&'a wire::Column>,
        items: usize,
    ) -> Result<Self, Malformed> {
        let (base, offsets) = column.map_or((0, &[][..]), |c| (c.base, &c.offsets[..]));
        if !offsets.is_empty() && offsets.len() != items {
            return Err(Malformed::new(
                format!("{path}.offsets"),
                format!("{} numbers long", offsets.len()),
                format!("none, or one for each of the {items} items"),
            ));
        }
        for (index, offset) in offsets.iter().enumerate() {
            if base.checked_add(*offset).is_none() {
                return Err(Malformed::new(
                    format!("{path}.offsets[{index}]"),
                    format!("{offset}, on a base of {base}"),
                    "sums below 2^64",
                ));
            }
        }
        Ok(Self {
            path,
            base,
            offsets,
        })
    }

    /// The number of item `index`.
    pub(super) fn at(&self, index: usize) -> u64 {
        let offset = self.offsets.get(index).copied().unwrap_or(0);
        self.base.checked_add(offset).expect("checked on decoding")
    }

    /// The number of item `index`, if it is in `min..=max`.
    pub(super) fn within(&self, index: usize, min: u64, max: u64) -> Result<u64, Malformed> {
        let value = self.at(index);
        if (min..=max).contains(&value) {
            Ok(value)
        } else {
            Err(self.refuse(index, value, format!("{min} to {max}")))
        }
    }

    /// The error that item `index` holds `found`.
    pub(super) fn refuse(
        &self,
        index: usize,
        found: impl std::fmt::Display,
        allowed: impl Into<std::borrow::Cow<'static, str>>,
    ) -> Malformed {
        Malformed::new(format!("{}[{index}]", self.path), found, allowed)
    }
}

/// Key numbers as differences, the first one from zero.
pub(super) fn encode_keys(keys: impl Iterator<Item = KeyNumber>) -> Vec<i64> {
    let mut before = 0;
    keys.map(|key| {
        let key = i64::from(key.get());
        let delta = key - before;
        before = key;
        delta
    })
    .collect()
}

/// The key numbers of a batch. `path` names the column in errors.
pub(super) fn decode_keys(path: &str, deltas: &[i64]) -> Result<Vec<KeyNumber>, Malformed> {
    if deltas.len() > ITEMS_MAX {
        return Err(Malformed::new(
            path,
            format!("{} items long", deltas.len()),
            format!("at most {ITEMS_MAX} items"),
        ));
    }
    let mut before = 0_i64;
    let mut keys = Vec::with_capacity(deltas.len());
    for (index, delta) in deltas.iter().enumerate() {
        let key = before
            .checked_add(*delta)
            .and_then(|key| u32::try_from(key).ok())
            .ok_or_else(|| {
                Malformed::new(
                    format!("{path}[{index}]"),
                    format!("{delta}, after key number {before}"),
                    "differences between numbers from 0 to 2^32 - 1",
                )
            })?;
        before = i64::from(key);
        keys.push(KeyNumber::new(key));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_travel_once_and_zeros_not_at_all() {
        assert_eq!(encode(&[0_u64, 0], |v| Some(*v)), None);
        assert_eq!(encode(&[], |v: &u64| Some(*v)), None);
        assert_eq!(
            encode(&[7_u64, 7], |v| Some(*v)),
            Some(wire::Column {
                base: 7,
                offsets: vec![]
            })
        );
        assert_eq!(
            encode(&[7_u64, 0, 9], |v| (*v > 0).then_some(*v)),
            Some(wire::Column {
                base: 7,
                offsets: vec![0, 0, 2]
            })
        );
    }

    #[test]
    fn the_whole_range_of_numbers_fits() {
        let values = [u64::MAX, 0, 1];
        let column = encode(&values, |v| Some(*v));
        let read = Column::decode("c", column.as_ref(), 3).expect("legal");
        assert_eq!([read.at(0), read.at(1), read.at(2)], values);
        let keys = [0, u32::MAX, 5].map(KeyNumber::new);
        let deltas = encode_keys(keys.into_iter());
        assert_eq!(decode_keys("k", &deltas), Ok(keys.to_vec()));
    }
}
