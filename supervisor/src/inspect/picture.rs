//! The memory of an attempt as a line of eight heights.

use crate::domain::units::Bytes;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// At most `width` blocks; each is the highest of the samples it stands for. The full block is the limit, or, where
/// none is known, the highest sample. Empty for an empty series.
#[must_use]
pub fn sparkline(series: &[(f64, u64)], limit: Option<Bytes>, width: usize) -> String {
    let highest = series.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let top = limit.map_or(highest, |Bytes(limit)| limit).max(1);
    let columns = series.len().min(width);
    (0..columns)
        .filter_map(|column| {
            let (from, to) = (column * series.len() / columns, (column + 1) * series.len() / columns);
            series[from..to].iter().map(|(_, bytes)| *bytes).max()
        })
        .map(|bytes| block(bytes, top))
        .collect()
}

fn block(bytes: u64, top: u64) -> char {
    let height = u128::from(bytes) * BLOCKS.len() as u128 / u128::from(top);
    let height = usize::try_from(height).unwrap_or(usize::MAX).min(BLOCKS.len() - 1);
    BLOCKS[height]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_are_shares_of_the_limit() {
        let series: Vec<_> = (0..=8).map(|n| (f64::from(n), u64::try_from(n).unwrap() << 20)).collect();
        assert_eq!(sparkline(&series, Some(Bytes::mib(8)), 60), "▁▂▃▄▅▆▇██");
        assert_eq!(sparkline(&series, Some(Bytes::mib(16)), 60), "▁▁▂▂▃▃▄▄▅");
        assert_eq!(sparkline(&series, None, 3), "▃▆█");
        assert_eq!(sparkline(&[], None, 60), "");
        assert_eq!(sparkline(&[(0.0, u64::MAX), (1.0, 0)], Some(Bytes(0)), 60), "█▁");
    }
}
