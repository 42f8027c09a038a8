use super::*;
use crate::store::contract_tests::row;

fn claim(committed: i64, last: i64) -> BatchClaim {
    BatchClaim { uid: "u".into(), epoch: CachingEpoch(5), committed, last }
}

#[test]
fn what_does_not_pass_says_why() {
    assert_eq!(claim(3, 5).judge(None), FenceCheck::Gone);
    assert_eq!(claim(3, 5).judge(Some((CachingEpoch(6), 0))), FenceCheck::Higher(CachingEpoch(6)));
    assert_eq!(claim(3, 5).judge(Some((CachingEpoch(4), 3))), FenceCheck::Lower(CachingEpoch(4)));
    assert_eq!(claim(3, 5).judge(Some((CachingEpoch(5), 5))), FenceCheck::Done);
    assert_eq!(claim(3, 5).judge(Some((CachingEpoch(5), 9))), FenceCheck::Done);
    assert_eq!(claim(3, 5).judge(Some((CachingEpoch(5), 4))), FenceCheck::Rewind(4));
    assert_eq!(claim(3, 5).judge(Some((CachingEpoch(5), 2))), FenceCheck::Rewind(2));
}

#[test]
fn a_fence_comes_where_there_is_none_and_leaves_a_name_to_its_account() {
    let (one, two) = (row("one", "uid-1"), row("two", "uid-2"));
    let held = |rows: &[(&str, &str)]| {
        rows.iter().map(|(uid, name)| ((*uid).to_owned(), (*name).to_owned())).collect::<Vec<_>>()
    };
    let keeping = |held| keeping(&[&one, &two], held);
    assert_eq!(keeping(held(&[("uid-1", "one"), ("uid-2", "two")])), FenceRowSync::default());
    assert_eq!(keeping(held(&[("uid-1", "one")])).inserts, [("uid-2", "two")]);
    let renamed = keeping(held(&[("uid-1", "one"), ("old", "two"), ("uid-2", "before")]));
    assert_eq!(
        (renamed.deletes.join(" "), renamed.inserts),
        ("old uid-2".to_owned(), vec![("uid-2", "two")])
    );
}
