//! Events that come in two halves, or beside looks that know more.

use super::*;

const ONE: Number = Number(1);
const TWO: Number = Number(2);

fn at(name: &str) -> At {
    (Number::ROOT, Name::new(name.as_bytes()).unwrap())
}

fn known(number: Number) -> Option<Entry> {
    Some(Entry::Known(number))
}

/// Files 1 and 2 with these names.
fn tree(one: &str, two: &str) -> Tree {
    Tree::new([(at(one), ONE), (at(two), TWO)])
}

fn follow(tree: &mut Tree, events: &[(&str, What)]) {
    for (name, what) in events {
        tree.on_event(at(name), *what).for_each(drop);
    }
    tree.followed();
}

/// Looks at what is unsure, in a directory with these files.
fn look(tree: &mut Tree, directory: &[(&str, Number)]) {
    loop {
        let unsure = tree.take_unsure();
        if unsure.is_empty() {
            return;
        }
        for name in unsure {
            let found = directory.iter().find(|(found, _)| at(found) == name).map(|(_, number)| Entry::Known(*number));
            tree.set(name, found);
        }
    }
}

const fn renamed<'a>(from: &'a str, to: &'a str, cookie: u32) -> [(&'a str, What); 2] {
    [(from, What::MovedFrom { cookie }), (to, What::MovedTo { cookie })]
}

#[test]
fn names_change_places_between_two_reads() {
    let mut tree = tree("x", "y");
    tree.exchanging();
    let now = [("x", TWO), ("y", ONE)];
    follow(&mut tree, &renamed("x", "y", 1));
    look(&mut tree, &now);
    follow(&mut tree, &renamed("y", "x", 2));
    look(&mut tree, &now);
    assert_eq!((tree.entry(&at("x")), tree.entry(&at("y"))), (known(TWO), known(ONE)));
    assert_eq!(tree.take_nameless(), []);
}

#[test]
fn a_rename_of_a_known_file_needs_no_look() {
    let mut tree = tree("x", "y");
    follow(&mut tree, &renamed("x", "z", 1));
    assert!(tree.take_unsure().is_empty());
    assert_eq!((tree.entry(&at("x")), tree.entry(&at("z"))), (None, known(ONE)));
}

/// The event that brings a file back was lost, and is not the last one that is queued.
#[test]
fn older_events_take_no_name_that_was_seen() {
    for event in [What::Deleted, What::MovedFrom { cookie: 1 }] {
        let mut tree = tree("x", "y");
        let now = [("x", ONE), ("y", TWO)];
        tree.forget_entries();
        now.iter().for_each(|(name, _)| tree.doubt(at(name)));
        look(&mut tree, &now);
        assert!(tree.contradicts(&at("x"), event));
        follow(&mut tree, &[("x", event)]);
        look(&mut tree, &now);
        assert_eq!(tree.entry(&at("x")), known(ONE), "{event:?}");
        assert!(!tree.is_floating());
    }
}

#[test]
fn what_was_moved_twice_is_looked_at() {
    let mut tree = tree("w", "other");
    tree.doubt(at("w"));
    // It has moved on to y, and another file has come and gone.
    look(&mut tree, &[("w", TWO), ("y", ONE)]);
    let [from, to] = renamed("w", "x", 1);
    let [from_again, to_again] = renamed("x", "y", 2);
    follow(&mut tree, &[from, to, from_again, to_again, ("w", What::Created), ("w", What::Deleted)]);
    look(&mut tree, &[("y", ONE)]);
    assert_eq!((tree.entry(&at("w")), tree.entry(&at("x")), tree.entry(&at("y"))), (None, None, known(ONE)));
}

#[test]
fn any_event_of_a_name_contradicts_a_list() {
    let mut tree = tree("x", "y");
    tree.list(Number(9));
    assert!(tree.contradicts(&at("x"), What::MovedTo { cookie: 1 }));
    assert!(!tree.contradicts(&at("x"), What::Opened));
}
