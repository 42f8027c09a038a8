//! Detection of cycles among steps that happen by themselves.

/// The steps that happen by themselves: their targets, for each world in order of its number.
#[derive(Debug, Default)]
pub(super) struct Edges {
    to: Vec<u32>,
    /// End of each world's steps in `to`.
    ends: Vec<usize>,
}

impl Edges {
    /// Adds a step of the current world.
    pub(super) fn add(&mut self, to: u32) {
        self.to.push(to);
    }

    /// Starts the steps of the next world.
    pub(super) fn end_of_node(&mut self) {
        self.ends.push(self.to.len());
    }

    /// Returns the range of a world's steps in `to`; empty if it was not expanded.
    fn of(&self, node: u32) -> std::ops::Range<usize> {
        let node = node as usize;
        let end = self.ends.get(node).copied();
        let begin = node.checked_sub(1).and_then(|before| self.ends.get(before)).copied();
        end.map_or(0..0, |end| begin.unwrap_or_default()..end)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    /// On the current path.
    Open,
    Done,
}

/// Returns the worlds of a cycle in order, if there is one.
pub(super) fn circle(edges: &Edges) -> Option<Vec<u32>> {
    let mut marks = vec![Mark::New; edges.ends.len()];
    for start in 0..u32::try_from(edges.ends.len()).unwrap_or(u32::MAX) {
        if marks[start as usize] != Mark::New {
            continue;
        }
        marks[start as usize] = Mark::Open;
        let mut way = vec![(start, edges.of(start))];
        while let Some((node, rest)) = way.last_mut() {
            let Some(to) = rest.next().map(|place| edges.to[place]) else {
                marks[*node as usize] = Mark::Done;
                way.pop();
                continue;
            };
            match marks.get(to as usize) {
                Some(Mark::New) => {
                    marks[to as usize] = Mark::Open;
                    way.push((to, edges.of(to)));
                }
                Some(Mark::Open) => {
                    let circle = way.iter().map(|(node, _)| *node).skip_while(|node| *node != to);
                    return Some(circle.collect());
                }
                Some(Mark::Done) | None => {}
            }
        }
    }
    None
}
