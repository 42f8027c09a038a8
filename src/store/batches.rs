//! Rows cut into pieces, each for one statement.

/// How many rows one statement takes: few sizes, so that few statements are prepared once and stay so.
pub(super) const BATCH_SIZES: [usize; 4] = [256, 64, 8, 1];

/// Cuts a list into pieces of these sizes, none heavier than `most` unless it is a single item.
pub(super) fn pieces<T>(
    mut items: &[T],
    weigh: impl Fn(&T) -> usize,
    most: usize,
) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let size = BATCH_SIZES.into_iter().find(|size| {
            *size == 1
                || items.get(..*size).is_some_and(|piece| piece.iter().map(&weigh).sum::<usize>() <= most)
        })?;
        let (piece, rest) = items.split_at_checked(size)?;
        items = rest;
        Some(piece)
    })
}

/// A statement for each of the sizes.
pub(super) struct Statements([String; BATCH_SIZES.len()]);

impl Statements {
    /// Makes the statement of each size.
    pub(super) fn new(statement: impl Fn(usize) -> String) -> Self {
        Self(BATCH_SIZES.map(statement))
    }

    /// The one for a piece of this size.
    pub(super) fn of(&self, size: usize) -> &str {
        let at = BATCH_SIZES.iter().position(|known| *known == size).unwrap_or(BATCH_SIZES.len() - 1);
        &self.0[at]
    }
}

#[cfg(test)]
mod tests {
    use super::pieces;

    fn sizes(weights: &[usize], most: usize) -> Vec<usize> {
        pieces(weights, |weight| *weight, most).map(<[usize]>::len).collect()
    }

    #[test]
    fn pieces_have_the_known_sizes() {
        assert_eq!(sizes(&[1; 340], usize::MAX / 1024), [256, 64, 8, 8, 1, 1, 1, 1]);
        assert_eq!(sizes(&[], 10), Vec::<usize>::new());
    }

    #[test]
    fn no_piece_is_too_heavy_but_a_single_row() {
        assert_eq!(sizes(&[1; 9], 7), [1; 9]);
        assert_eq!(sizes(&[1, 1, 1, 1, 1, 1, 1, 1, 99], 8), [8, 1]);
    }
}
