//! Whether steps that happen by themselves can go round in a circle.

/// The steps that happen by themselves: for each world in the order of their numbers, where they lead.
#[derive(Debug, Default)]
pub(super) struct Edges {
    to: Vec<u32>,
    /// Where the steps of each world end in `to`.
    ends: Vec<usize>,
}

impl Edges {
    /// A step of the world at hand.
    pub(super) fn add(&mut self, to: u32) {
        self.to.push(to);
    }

    /// The next world's steps follow.
    pub(super) fn end_of_node(&mut self) {
        self.ends.push(self.to.len());
    }

    /// Where a world's steps stand in `to`; none where it was not looked at.
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
    /// On the way that is being followed.
    Open,
    Done,
}

/// The worlds of a circle in their order, if there is one.
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
