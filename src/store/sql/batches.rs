//! Splits rows into slices of one statement each.

/// Numbers of rows in one statement. Only a few sizes, so that few statements are prepared, and those stay prepared.
const BATCH_SIZES: [usize; 4] = [256, 64, 8, 1];

/// Splits a list into slices of these sizes, none heavier than `most` unless it is a single item.
pub(in crate::store) fn pieces<T>(
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

/// Splits a list into slices of at most `count` items, none heavier than `most` unless it is a single item.
pub(in crate::store) fn chunks<T>(
    mut items: &[T],
    weigh: impl Fn(&T) -> usize,
    count: usize,
    most: usize,
) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let mut weight = 0;
        let fits = |item: &&T| {
            weight += weigh(item);
            weight <= most
        };
        let size = items.iter().take(count).take_while(fits).count().max(1);
        let (piece, rest) = items.split_at_checked(size)?;
        items = rest;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::{chunks, pieces};

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

    #[test]
    fn chunks_are_bounded_by_count_and_weight() {
        let sizes = |weights: &[usize]| {
            chunks(weights, |weight| *weight, 3, 10).map(<[usize]>::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[1; 7]), [3, 3, 1]);
        assert_eq!(sizes(&[6, 6, 99, 1]), [1, 1, 1, 1]);
        assert_eq!(sizes(&[]), [0; 0]);
    }
}
